"""HTTP/1 at the gate: its proxy, its guard on any connection, and the secrets in it."""
