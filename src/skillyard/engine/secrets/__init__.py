"""Secrets: the methods, the secrets of a run, and their redaction."""
