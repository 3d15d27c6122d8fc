CREATE TABLE publications (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    name         TEXT NOT NULL,
    place        TEXT NOT NULL,  -- the version without build metadata: what precedes and follows alike is one version
    version      TEXT NOT NULL,
    digest       TEXT NOT NULL,
    published_at REAL NOT NULL,
    published_by TEXT NOT NULL,
    project      TEXT NOT NULL,
    size         INTEGER NOT NULL,
    files        INTEGER NOT NULL,
    withdrawn_at REAL,
    withdrawn_by TEXT NOT NULL DEFAULT '',
    reason       TEXT NOT NULL DEFAULT ''
) STRICT;

CREATE UNIQUE INDEX publications_of_name ON publications (name, place);

CREATE TRIGGER publication_stays BEFORE DELETE ON publications BEGIN
    SELECT RAISE(ABORT, 'a published version stays');
END;

CREATE TRIGGER publication_is_fixed
BEFORE UPDATE OF name, place, version, digest, published_at, published_by, project, size, files ON publications BEGIN
    SELECT RAISE(ABORT, 'a published version stays as it is');
END;

CREATE TABLE publication_totals (
    project TEXT PRIMARY KEY,
    count   INTEGER NOT NULL,
    bytes   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER publication_counted AFTER INSERT ON publications BEGIN
    INSERT INTO publication_totals (project, count, bytes) VALUES (new.project, 1, new.size)
        ON CONFLICT (project) DO UPDATE SET count = count + 1, bytes = bytes + new.size;
END;

CREATE TABLE publication_pins (
    name      TEXT PRIMARY KEY,
    version   TEXT NOT NULL,
    pinned_at REAL NOT NULL,
    pinned_by TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE publication_history (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    at        REAL NOT NULL,
    act       TEXT NOT NULL,
    name      TEXT NOT NULL,
    version   TEXT NOT NULL,
    digest    TEXT NOT NULL,
    principal TEXT NOT NULL,
    reason    TEXT NOT NULL
) STRICT;

CREATE INDEX publication_history_of_name ON publication_history (name);

CREATE TRIGGER publication_history_stays BEFORE UPDATE ON publication_history BEGIN
    SELECT RAISE(ABORT, 'the history of publications is append-only');
END;

CREATE TRIGGER publication_history_is_kept BEFORE DELETE ON publication_history BEGIN
    SELECT RAISE(ABORT, 'the history of publications is append-only');
END;
