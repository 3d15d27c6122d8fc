"""Examples that run from a checkout."""
