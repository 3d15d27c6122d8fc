"""The twin and the conformance suite of the port of jobs."""
