-- The packages that an approval was given with: for each set of requirements that runs asked for under it, the lock that
-- it was resolved to first. Approvals made before this have none until their next run.
CREATE TABLE approval_locks (
    name    TEXT NOT NULL,
    version TEXT NOT NULL,
    digest  TEXT NOT NULL,
    wanted  TEXT NOT NULL,
    lock    TEXT NOT NULL,
    PRIMARY KEY (name, version, digest, wanted)
) STRICT, WITHOUT ROWID;
