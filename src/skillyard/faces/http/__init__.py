"""HTTP: ``/rpc``, ``/blobs``, ``/skills``, the probes and the metrics (skills-protocol §2, §11)."""
