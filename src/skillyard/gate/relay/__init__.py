"""Relays bytes between a sandbox and a server, through guards that hold them to the host that was allowed."""
