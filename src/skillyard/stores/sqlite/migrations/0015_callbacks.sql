-- The callback of a task that has ended: added with its end, gone with its record.
CREATE TABLE callbacks (
    run     INTEGER PRIMARY KEY,
    run_id  TEXT NOT NULL UNIQUE,
    state   TEXT NOT NULL,
    tries   INTEGER NOT NULL,
    next_at REAL,
    told    TEXT NOT NULL,
    host    TEXT NOT NULL
) STRICT;

CREATE INDEX callbacks_due ON callbacks (next_at) WHERE next_at IS NOT NULL;

CREATE TRIGGER runs_leave_no_callback AFTER DELETE ON runs
BEGIN
    DELETE FROM callbacks WHERE run = OLD.seq;
END;
