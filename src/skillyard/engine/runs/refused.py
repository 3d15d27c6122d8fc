"""A run that fails before it starts."""

from __future__ import annotations


class Refused(Exception):
    """``type`` is one of the reserved error types (skills-protocol §4)."""

    def __init__(self, type_: str, message: str) -> None:
        super().__init__(message)
        self.type = type_
        self.message = message
