"""The common part of the suites of stores: a list of checks, and their helpers.

A check is an async function that takes a maker of fresh, empty stores and raises when a promise is broken::

    for check in records_suite.CHECKS:
        await check(maker)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from skillyard.domain.errors import SkillyardError
from skillyard.testing.sandbox_suite.check import Failed, expect

__all__ = ["Checks", "Failed", "expect", "refused"]

M = TypeVar("M")
E = TypeVar("E", bound=SkillyardError)


class Checks(Generic[M]):
    """The checks of one port, in the order in which they are written; a decorator."""

    def __init__(self) -> None:
        self.all: list[Callable[[M], Awaitable[None]]] = []

    def __call__(self, function: Callable[[M], Awaitable[None]]) -> Callable[[M], Awaitable[None]]:
        self.all.append(function)
        return function


async def refused(kind: type[E], asked: Awaitable[object], promise: str) -> E:
    """The error that ``asked`` raises. Raises Failed when it raises none or another."""
    try:
        seen = await asked
    except kind as error:
        return error
    except SkillyardError as error:
        raise Failed(f"{promise}; seen: {type(error).__name__}: {error}") from error
    raise Failed(f"{promise}; seen: {seen!r:.500}")
