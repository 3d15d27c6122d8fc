"""Values of secrets: names, delivery and audit events."""
