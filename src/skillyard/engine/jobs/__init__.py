"""Jobs: ordered steps in a skill, each a task, driven from a record."""
