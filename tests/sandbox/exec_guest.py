"""Runs a Guest as a command: the shared helper says how."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from skillyard.domain.sandbox import Argv, Guest

CHANNEL = 3


async def guest_argv(program: Guest, write: Callable[..., Awaitable[Any]]) -> Argv:
    raise NotImplementedError
