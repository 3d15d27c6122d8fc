"""Blobs: the methods and bounds on large contents."""
