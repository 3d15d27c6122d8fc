"""The conformance suites of the gate port and of its store of kept sessions."""
