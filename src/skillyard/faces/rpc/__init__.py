"""JSON-RPC 2.0 (skills-protocol §2, §6), whichever way its bytes travel."""
