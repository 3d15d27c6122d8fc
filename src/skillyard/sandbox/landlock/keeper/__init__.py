"""The process that owns the sandboxes of the landlock backend."""
