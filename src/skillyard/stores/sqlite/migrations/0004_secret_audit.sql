CREATE TABLE secret_audit (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    at        REAL NOT NULL,
    act       TEXT NOT NULL,
    name      TEXT NOT NULL,
    principal TEXT NOT NULL,
    project   TEXT NOT NULL,
    skill     TEXT NOT NULL,
    run_id    TEXT NOT NULL,
    scope     TEXT NOT NULL,
    version   TEXT NOT NULL,
    delivery  TEXT NOT NULL,
    reason    TEXT NOT NULL
) STRICT;

CREATE INDEX secret_audit_of_name ON secret_audit (name);
CREATE INDEX secret_audit_by_time ON secret_audit (at);

CREATE TRIGGER secret_audit_stays BEFORE UPDATE ON secret_audit BEGIN
    SELECT RAISE(ABORT, 'the audit of secrets is append-only');
END;

-- The last use of each, kept by a trigger, so that it outlives the retention of the audit.
CREATE TABLE secret_uses (
    name  TEXT NOT NULL,
    scope TEXT NOT NULL,
    at    REAL NOT NULL,
    PRIMARY KEY (name, scope)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER secret_used AFTER INSERT ON secret_audit WHEN new.act = 'used' BEGIN
    INSERT INTO secret_uses (name, scope, at) VALUES (new.name, new.scope, new.at)
        ON CONFLICT (name, scope) DO UPDATE SET at = excluded.at;
END;

CREATE TRIGGER secret_forgotten AFTER INSERT ON secret_audit WHEN new.act = 'deleted' BEGIN
    DELETE FROM secret_uses WHERE name = new.name AND scope = new.scope;
END;
