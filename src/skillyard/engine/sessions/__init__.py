"""Sessions: sandboxes that are kept for several runs of one agent."""
