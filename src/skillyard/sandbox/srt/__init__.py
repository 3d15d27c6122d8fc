"""Anthropic's sandbox-runtime (srt) as a backend, on a stage and round an agent."""
