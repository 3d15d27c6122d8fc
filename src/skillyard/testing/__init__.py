"""Conformance suites as library API, and in-memory twins of the ports."""
