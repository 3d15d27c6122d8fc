"""Values of Python packages: requirements, locks and environments."""
