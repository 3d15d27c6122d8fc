"""The network of runs: what policy grants, and changes while a run works."""
