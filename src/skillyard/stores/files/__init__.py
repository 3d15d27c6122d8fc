"""Stores in files of the data directory: blobs, tokens and environments."""
