"""Runs a skill's own examples, each in a sandbox of its own, through a client or a runtime."""
