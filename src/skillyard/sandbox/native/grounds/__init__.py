"""Grounds: each makes, watches and ends the sandboxes of one keeper with other means of the kernel."""
