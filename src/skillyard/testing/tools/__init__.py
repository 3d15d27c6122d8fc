"""The twins and the suite of the tools of MCP servers."""
