"""Logs, metrics and spans for operators, made of the engine's events and of the faces'."""
