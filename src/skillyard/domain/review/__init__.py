"""Reviews a bundle for a reader who has to decide whether to trust it. Nothing of it is executed.

These are pure functions over bytes, bounded in time and memory. A review knows a list of dangers; a bundle without
findings may still be dangerous. The process for hostile input imports the reading of Python alone, so that it starts
quickly; thus the package itself imports nothing.
"""
