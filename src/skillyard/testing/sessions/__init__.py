"""The twin and the conformance suite of the sessions port."""
