"""The table of backends: ``python -m bench backends``."""
