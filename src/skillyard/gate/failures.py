"""Why a connection is not made, or not continued: one line, which a log repeats and a program may be told."""

from __future__ import annotations


class Failure(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Refused(Failure):
    """The policy, or what every connection is held to, says no."""


class Unreachable(Failure):
    """It was allowed, and there is no such name, or nobody answers."""


class TimedOut(Unreachable):
    """Nobody answers in time."""


class Ended(Failure):
    """It was under way, and a limit, a narrower policy or the end of its session ended it."""
