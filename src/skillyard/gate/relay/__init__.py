"""Relays bytes between a sandbox and a server.

Guards hold them to the host that was allowed.
"""
