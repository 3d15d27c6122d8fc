"""Modules that run inside a landlock sandbox."""
