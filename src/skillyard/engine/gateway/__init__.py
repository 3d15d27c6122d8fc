"""The gateway: tools of MCP servers, which run in sandboxes and are approved one by one."""
