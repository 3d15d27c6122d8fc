"""Runs: from a request to the record of its end."""
