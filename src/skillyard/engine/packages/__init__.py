"""Packages for runs: requirements are resolved once, built in a sandbox, and shared read-only."""
