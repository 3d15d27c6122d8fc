"""The sections of MCP servers whose tools are offered."""
