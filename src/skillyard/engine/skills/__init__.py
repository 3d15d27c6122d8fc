"""Skills: discovery, publishing, review and approval."""
