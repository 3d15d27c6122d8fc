"""``skillyard bench``: the cost of a run here, beside plain interpreters with the same job."""
