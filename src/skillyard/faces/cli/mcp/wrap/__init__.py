"""``skillyard mcp wrap`` and ``unwrap`` put servers of a configuration into jails."""
