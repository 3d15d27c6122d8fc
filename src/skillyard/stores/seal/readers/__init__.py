"""Places that secrets are read from and never written to, each a :class:`skillyard.ports.secrets.SecretReader`."""
