CREATE TABLE approvals (
    name        TEXT NOT NULL,
    version     TEXT NOT NULL,
    digest      TEXT NOT NULL,
    approved_at REAL NOT NULL,
    approved_by TEXT NOT NULL,
    note        TEXT NOT NULL,
    PRIMARY KEY (name, version, digest)
) STRICT, WITHOUT ROWID;
