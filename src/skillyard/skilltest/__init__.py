"""Running a skill's own examples, each in a sandbox of its own, through what the client and the runtime offer alike."""
