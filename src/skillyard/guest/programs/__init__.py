"""Programs that the guest starts: their output, their ends, and those that listen."""
