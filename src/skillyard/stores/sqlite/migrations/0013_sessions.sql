CREATE TABLE sessions (
    seq          INTEGER PRIMARY KEY,
    session_id   TEXT NOT NULL UNIQUE,
    project      TEXT NOT NULL,
    agent        TEXT NOT NULL,
    alias        TEXT NOT NULL,
    principal    TEXT NOT NULL,
    revision     INTEGER NOT NULL,
    ended_at     REAL,
    lease_holder TEXT,
    lease_boot   TEXT,
    lease_until  REAL,
    record       TEXT NOT NULL
) STRICT;

-- One live session of a key: of two first calls at once, the second finds the record of the first.
CREATE UNIQUE INDEX sessions_live ON sessions (project, agent, alias) WHERE ended_at IS NULL;
CREATE INDEX sessions_of_principal ON sessions (principal) WHERE ended_at IS NULL;
CREATE INDEX sessions_ended ON sessions (ended_at) WHERE ended_at IS NOT NULL;
