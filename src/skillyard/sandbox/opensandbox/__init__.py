"""Sandboxes of an OpenSandbox server."""
