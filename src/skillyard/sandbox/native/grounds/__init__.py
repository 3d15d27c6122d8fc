"""The grounds: each makes, watches and ends sandboxes with other means of the kernel."""
