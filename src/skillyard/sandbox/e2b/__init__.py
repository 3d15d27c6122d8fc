"""The e2b backend: machines of E2B, or of its self-hosted server, with an agent inside."""
