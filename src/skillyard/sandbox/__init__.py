"""One file per backend; ``native`` is the default."""
