CREATE TABLE blobs (
    seq        INTEGER PRIMARY KEY,
    blob_id    TEXT NOT NULL UNIQUE,
    owner      TEXT NOT NULL,
    kind       TEXT NOT NULL,
    size       INTEGER NOT NULL,
    sha256     TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL,
    run_id     TEXT,
    content    BLOB
) STRICT;

CREATE INDEX blobs_of_owner ON blobs (owner);
CREATE INDEX blobs_of_content ON blobs (sha256);
CREATE INDEX blobs_expiring ON blobs (expires_at) WHERE expires_at IS NOT NULL;

-- What each owner stores, kept by triggers so that a quota check reads one row and is never out of step.
CREATE TABLE blob_owners (
    owner TEXT PRIMARY KEY,
    count INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER blob_counted AFTER INSERT ON blobs BEGIN
    INSERT INTO blob_owners (owner, count, bytes) VALUES (new.owner, 1, new.size)
        ON CONFLICT (owner) DO UPDATE SET count = count + 1, bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER blob_uncounted AFTER DELETE ON blobs BEGIN
    UPDATE blob_owners SET count = count - 1, bytes = bytes - old.size WHERE owner = old.owner;
    DELETE FROM blob_owners WHERE owner = old.owner AND count = 0;
END;
