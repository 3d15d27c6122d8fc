"""``skillyard jail``: any program behind the walls, with its streams passed through."""
