"""The Python client. It imports nothing of the server."""
