"""Sections that faces read, and the engine does not."""
