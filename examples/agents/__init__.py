"""Agents whose models work in sandboxes, each in one file: docs/agent-examples.md says which to choose."""
