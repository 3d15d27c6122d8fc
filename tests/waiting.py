"""Waits for what cannot tell that it happened, without taking the processors from those that make it happen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LEAST_S, _MOST_S = 0.02, 0.5
_SHARE = 3


class Pause:
    """Pauses between two looks, thrice as long as the last look took.

    A look asks a server, or reads files of every process of the host: one after the other they would keep a processor.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()

    def __call__(self) -> None:
        took = time.monotonic() - self._since
        time.sleep(min(max(_LEAST_S, _SHARE * took), _MOST_S))
        self._since = time.monotonic()


def until(condition: Callable[[], T], seconds: float, what: str | Callable[[], str] = "it happens") -> T:
    """Returns what the condition gives once that is true.

    Raises AssertionError saying ``what`` did not happen.
    """
    pause, deadline = Pause(), time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"within {seconds:g} s: {what if isinstance(what, str) else what()}")
        pause()
    return found
