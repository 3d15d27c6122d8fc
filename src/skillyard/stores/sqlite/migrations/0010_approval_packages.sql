-- The packages that an approval is of: the lock that the skill's own requirements were resolved to first, with its text,
-- so that no environment has to be kept for it. Approvals made before this get theirs by their next run.
CREATE TABLE approval_packages (
    name    TEXT NOT NULL,
    version TEXT NOT NULL,
    digest  TEXT NOT NULL,
    wanted  TEXT NOT NULL,
    lock    TEXT NOT NULL,
    PRIMARY KEY (name, version, digest)
) STRICT;
