"""The operator's settings. A section is the very value that a service takes."""
