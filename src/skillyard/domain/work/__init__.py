"""Values of one run: its record, limits and outcome."""
