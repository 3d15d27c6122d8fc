CREATE TABLE disabled_skills (
    project TEXT NOT NULL,
    name    TEXT NOT NULL,
    at      REAL NOT NULL,
    by      TEXT NOT NULL,
    PRIMARY KEY (project, name)
) STRICT, WITHOUT ROWID;
