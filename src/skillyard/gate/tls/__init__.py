"""TLS at the gate: held to a server name, or ended here for hosts that secrets are bound to."""
