"""The commands of ``skillyard`` but those about skills: one module for each group."""
