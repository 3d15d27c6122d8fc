"""Values of a sandbox: its specification, protections and frames."""
