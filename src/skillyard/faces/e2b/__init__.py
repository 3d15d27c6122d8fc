"""The API of E2B over sandboxes of this server, for its unmodified SDKs."""
