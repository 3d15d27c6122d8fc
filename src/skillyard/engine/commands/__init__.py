"""Shell commands in skills: their requests, their output apart, and their answers."""
