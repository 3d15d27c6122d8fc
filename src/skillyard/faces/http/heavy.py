"""Large bodies one after the other, with pauses between them in which the small requests of others are served.

A body is parsed, checked and encoded in steps of tens of milliseconds each, on the one event loop that serves all. So
that who sends one large body after the other does not hold up who sends small ones, a server that has other callers
spends a tenth of its time on large bodies.
"""

from __future__ import annotations

import asyncio

_SECONDS_A_BYTE, _SECONDS_A_VALUE = 10e-9, 1.5e-6
"""Measured: 31 MiB of text take 0.3 s until they are with the sandbox, and a million small values 1.5 s."""
_LARGE_S = 0.0025
_REST = 9.0
_LATELY_S = 1.0


class Heavy:
    """Where the requests of all callers come by."""

    def __init__(self) -> None:
        self._line = asyncio.Lock()
        self._free_at = 0.0
        self._last: tuple[str, float] = ("", 0.0)
        self._last_other = 0.0

    async def turn(self, principal: str, size: int, values: int) -> None:
        """Returns when a body of so many bytes and JSON values may be worked on: at once unless it is large and
        another came before."""
        clock, work_s = asyncio.get_running_loop().time, size * _SECONDS_A_BYTE + values * _SECONDS_A_VALUE
        self._note(principal, clock())
        if work_s <= _LARGE_S:
            return
        async with self._line:
            if (left := self._free_at - clock()) > 0 and self._has_others(clock()):
                await asyncio.sleep(left)
            self._free_at = clock() + work_s * (1 + _REST)

    def _note(self, principal: str, now: float) -> None:
        before, at = self._last
        if before != principal:
            self._last_other = at
        self._last = (principal, now)

    def _has_others(self, now: float) -> bool:
        """Whether more than one principal has called lately."""
        return now - self._last_other < _LATELY_S
