"""Skills as packages: publish, withdraw, pin, export."""
