-- An approval covers the needs that were shown to the operator. Those from before cover no tools.
ALTER TABLE approvals ADD COLUMN needs INTEGER NOT NULL DEFAULT 1;
