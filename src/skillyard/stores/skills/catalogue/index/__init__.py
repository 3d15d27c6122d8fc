"""The catalogue's index: a cache in SQLite of what was read from bundles. It may be deleted at any time."""
