"""Packages for runs. Each set is resolved once, built in a sandbox and shared read-only."""
