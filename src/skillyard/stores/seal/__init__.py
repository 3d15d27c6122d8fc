"""Secrets in a sealed file, the keys that seal it, and readers of secrets elsewhere."""
