"""The keeper: the process of one thread that owns all sandboxes of a data directory.

All of them end with it. The server is its client and may come back.
"""
