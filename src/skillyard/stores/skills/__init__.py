"""Skills on the local disk: validation, archives, immutable snapshots and the catalogue."""
