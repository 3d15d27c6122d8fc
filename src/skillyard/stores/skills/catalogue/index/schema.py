"""The tables. A change here raises SCHEMA_VERSION: there are no migrations of a cache."""

from __future__ import annotations

SCHEMA_VERSION = 1

SCHEMA = (
    "CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL, seal BLOB NOT NULL) STRICT, WITHOUT ROWID",
    # A directory that was searched: what it looked like, and which of its entries are searched on or are bundles.
    """
    CREATE TABLE folders (
        root    INTEGER NOT NULL,
        path    BLOB NOT NULL,
        stamp   BLOB NOT NULL,
        listing TEXT NOT NULL,
        seal    BLOB NOT NULL,
        PRIMARY KEY (root, path)
    ) STRICT, WITHOUT ROWID""",
    # A bundle: where it is (a published one: its name and version), in which order it is found, what its files looked
    # like ('' when that says nothing), and what it is. `refusal` is why another one is served in its place.
    """
    CREATE TABLE bundles (
        id      INTEGER PRIMARY KEY,
        path    BLOB NOT NULL UNIQUE,
        rank    INTEGER NOT NULL,
        place   BLOB NOT NULL,
        stamp   BLOB NOT NULL,
        watched TEXT NOT NULL,
        paths   INTEGER NOT NULL,
        name    TEXT,
        version TEXT,
        digest  TEXT,
        line    TEXT NOT NULL,
        errors  TEXT NOT NULL,
        seal    BLOB NOT NULL,
        refusal TEXT NOT NULL DEFAULT ''
    ) STRICT""",
    "CREATE INDEX bundles_of_name ON bundles (name) WHERE name IS NOT NULL",
    "CREATE INDEX bundles_of_digest ON bundles (digest) WHERE digest IS NOT NULL",
    "CREATE INDEX bundles_by_rank ON bundles (rank, paths)",
    "CREATE INDEX bundles_with_problems ON bundles (rank, place) WHERE errors <> '' OR refusal <> ''",
    # A name that is served: its versions, newest first, as [version, digest, bundles.id].
    """
    CREATE TABLE names (
        name     TEXT PRIMARY KEY,
        latest   TEXT NOT NULL,
        line     TEXT NOT NULL,
        versions TEXT NOT NULL,
        seal     BLOB NOT NULL
    ) STRICT, WITHOUT ROWID""",
    # What was said of published versions; `place` is the version without build metadata.
    """
    CREATE TABLE withdrawn (
        name    TEXT NOT NULL,
        place   TEXT NOT NULL,
        version TEXT NOT NULL,
        at      REAL NOT NULL,
        reason  TEXT NOT NULL,
        PRIMARY KEY (name, place)
    ) STRICT, WITHOUT ROWID""",
    "CREATE TABLE pins (name TEXT PRIMARY KEY, version TEXT NOT NULL) STRICT, WITHOUT ROWID",
)
