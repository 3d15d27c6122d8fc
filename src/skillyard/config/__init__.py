"""The operator's settings: one file a section, whose value goes as it is to the service that uses it."""
