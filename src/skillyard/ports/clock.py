"""Time and identifiers come through here, so that tests choose them."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """UTC seconds since the epoch; may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def boottime(self) -> float:
        """Seconds since the machine was started, with those in which it slept; nobody can set it."""
        ...

    def boot(self) -> str:
        """Names this boot of the machine. Readings of :meth:`boottime` of two boots cannot be compared."""
        ...


class Ids(Protocol):
    def run(self) -> str:
        """A fresh ``run_…`` id."""
        ...

    def blob(self) -> str:
        """A fresh unguessable ``blob:…`` id."""
        ...

    def session(self) -> str:
        """A fresh ``ses_…`` id, without a hyphen."""
        ...
