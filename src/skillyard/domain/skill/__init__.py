"""Values of a skill: its manifest, versions, publication and approval."""
