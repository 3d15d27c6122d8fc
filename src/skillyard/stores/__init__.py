"""Blobs, skills, records, secrets and tokens on the local disk."""
