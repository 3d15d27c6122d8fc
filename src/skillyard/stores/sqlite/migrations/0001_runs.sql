CREATE TABLE runs (
    seq             INTEGER PRIMARY KEY,
    run_id          TEXT NOT NULL UNIQUE,
    principal       TEXT NOT NULL,
    status          TEXT NOT NULL,
    created_at      REAL NOT NULL,
    ended_at        REAL,
    idempotency_key TEXT,
    request_digest  TEXT NOT NULL,
    record          TEXT NOT NULL
) STRICT;

CREATE INDEX runs_of_principal ON runs (principal);
CREATE INDEX runs_running ON runs (seq) WHERE status = 'running';
CREATE INDEX runs_ended ON runs (ended_at) WHERE ended_at IS NOT NULL;
CREATE UNIQUE INDEX runs_by_key ON runs (principal, idempotency_key) WHERE idempotency_key IS NOT NULL;
