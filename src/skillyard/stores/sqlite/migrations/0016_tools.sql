CREATE TABLE tools (
    server        TEXT NOT NULL,
    name          TEXT NOT NULL,
    seen          TEXT,
    seen_at       REAL NOT NULL,
    approved      TEXT,
    approved_at   REAL,
    approved_by   TEXT NOT NULL DEFAULT '',
    CHECK (seen IS NOT NULL OR approved IS NOT NULL),
    PRIMARY KEY (server, name)
) STRICT, WITHOUT ROWID;
