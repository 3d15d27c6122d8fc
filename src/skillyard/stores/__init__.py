"""Implementations of the ports that keep state: in SQLite, in files, sealed, and skills."""
