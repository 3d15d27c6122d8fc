"""``skillyard bench``: what a run costs here, beside others that do the same job in the same minute."""
