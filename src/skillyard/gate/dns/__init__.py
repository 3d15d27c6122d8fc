"""The name server of a sandbox."""
