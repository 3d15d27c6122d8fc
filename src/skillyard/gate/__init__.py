"""The gate: the process through which sandboxes reach what their policy allows.

Its client in the server is here too.
"""
