"""Connections to MCP servers, over the official SDK. It is imported when the first server is used."""
