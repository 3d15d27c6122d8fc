"""The process that owns every sandbox of one data directory: pid 1 of its own pid namespace, one thread.

Its end is the end of all it holds; the server is only its client and may come back.
"""
