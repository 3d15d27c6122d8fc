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


class Ids(Protocol):
    def run(self) -> str:
        """A fresh ``run_…`` id."""
        ...

    def blob(self) -> str:
        """A fresh unguessable ``blob:…`` id."""
        ...
