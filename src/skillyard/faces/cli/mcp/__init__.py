"""``skillyard mcp``: the Model Context Protocol on the command line."""
