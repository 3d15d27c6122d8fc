"""A short checksum over a row: SQLite does not notice a bit that turns in a text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


class Damaged(Exception):
    """The index holds what was never written to it."""


def sealed(values: Sequence[object]) -> tuple[object, ...]:
    """The values (integers, texts, bytes and None) with their checksum behind them."""
    return (*values, _checksum(values))


def opened(row: Sequence[object]) -> Sequence[object]:
    """The values of a row that :func:`sealed` made. Raises Damaged."""
    values, checksum = row[:-1], row[-1]
    if checksum != _checksum(tuple(values)):
        raise Damaged("a row differs from what was written")
    return values


def _checksum(values: Sequence[object]) -> bytes:
    return hashlib.blake2b(repr(tuple(values)).encode("utf-8", "surrogatepass"), digest_size=8).digest()
