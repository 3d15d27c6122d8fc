-- Work that outlives its server. A write of a record names the revision that it read. The lease is apart from the record,
-- so that one statement renews all of a server. The request of such work stays until it has ended.
ALTER TABLE runs ADD COLUMN revision INTEGER NOT NULL DEFAULT 1;
ALTER TABLE runs ADD COLUMN lease_holder TEXT;
ALTER TABLE runs ADD COLUMN lease_boot TEXT;
ALTER TABLE runs ADD COLUMN lease_until REAL;
ALTER TABLE runs ADD COLUMN labels TEXT;
ALTER TABLE runs ADD COLUMN request TEXT;

DROP INDEX runs_running;
CREATE INDEX runs_live ON runs (seq) WHERE ended_at IS NULL;

CREATE TABLE run_events (
    run    INTEGER NOT NULL,
    number INTEGER NOT NULL,
    at     REAL NOT NULL,
    kind   TEXT NOT NULL,
    data   TEXT NOT NULL,
    PRIMARY KEY (run, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE run_labels (
    name      TEXT NOT NULL,
    value     TEXT NOT NULL,
    principal TEXT NOT NULL,
    run       INTEGER NOT NULL,
    PRIMARY KEY (name, value, principal, run)
) STRICT, WITHOUT ROWID;

CREATE INDEX run_labels_of_run ON run_labels (run);

CREATE TRIGGER runs_leave_nothing AFTER DELETE ON runs
BEGIN
    DELETE FROM run_events WHERE run = OLD.seq;
    DELETE FROM run_labels WHERE run = OLD.seq;
END;
