"""Thin: parse, authorise, call the engine, render."""
