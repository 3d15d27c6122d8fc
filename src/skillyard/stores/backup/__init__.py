"""A data directory as one archive, and back."""
