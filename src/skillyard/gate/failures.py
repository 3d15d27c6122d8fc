"""Why a connection is not made or does not go on: one line for the log and for the program."""

from __future__ import annotations


class Failure(Exception):
    """A connection is not made or does not go on because of ``reason``."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Refused(Failure):
    """The policy, or a rule for every connection, does not allow it."""


class Unreachable(Failure):
    """It was allowed, but the name does not exist or no server answers."""


class TimedOut(Unreachable):
    """No server answers in time."""


class Ended(Failure):
    """A limit, a narrower policy or the end of its session ended it."""
