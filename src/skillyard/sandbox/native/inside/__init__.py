"""Modules that run inside a sandbox: its zygote, its init and its walls."""
