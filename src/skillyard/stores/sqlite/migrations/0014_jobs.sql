CREATE TABLE jobs (
    seq             INTEGER PRIMARY KEY,
    job_id          TEXT NOT NULL UNIQUE,
    project         TEXT NOT NULL,
    agent           TEXT NOT NULL,
    principal       TEXT NOT NULL,
    idempotency_key TEXT,
    request_digest  TEXT NOT NULL,
    revision        INTEGER NOT NULL,
    finished_at     REAL,
    record          TEXT NOT NULL,
    request         TEXT
) STRICT;

CREATE INDEX jobs_of_agent ON jobs (project, agent);
CREATE INDEX jobs_of_principal ON jobs (principal);
CREATE INDEX jobs_live ON jobs (principal) WHERE finished_at IS NULL;
CREATE INDEX jobs_finished ON jobs (finished_at) WHERE finished_at IS NOT NULL;
CREATE UNIQUE INDEX jobs_by_key ON jobs (principal, idempotency_key) WHERE idempotency_key IS NOT NULL;
