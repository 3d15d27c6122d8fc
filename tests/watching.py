"""Counts what this process asks of the system, where a test holds the cost of something."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

_counting: list[Counter[str]] = []
_heard: list[bool] = []


def _count(event: str, _: object) -> None:
    for counter in _counting:
        counter[event] += 1


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts the events of Python's audit table meanwhile, such as ``open`` and ``os.mkdir``."""
    if not _heard:
        sys.addaudithook(_count)  # there is no way to take one away
        _heard.append(True)
    counter: Counter[str] = Counter()
    _counting.append(counter)
    try:
        yield counter
    finally:
        _counting.remove(counter)
