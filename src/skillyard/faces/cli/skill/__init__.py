"""``skillyard skill``: find, read, make, check, publish and trust skills."""
