"""The gate: the one process through which sandboxes reach what their policy allows, and its client in the server."""
