"""Hostile archives: names of their entries, and a strict reader of tar streams."""
