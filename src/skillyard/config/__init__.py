"""The operator's settings, one module a section."""
