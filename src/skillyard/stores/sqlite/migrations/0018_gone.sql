-- Milliseconds from the end of a run until nothing of its sandbox was left. It comes behind the record, on its own.
ALTER TABLE runs ADD COLUMN gone_ms REAL;
