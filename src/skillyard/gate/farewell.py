"""Closing so that the last words arrive: with something unread, the kernel would send a reset, which overtakes them."""

from __future__ import annotations

import asyncio
import contextlib

from skillyard.gate.relay.stream import Stream

_BOUND_S = 2.0
_MOST = 1 << 20
"""Bytes that are read and thrown away."""


async def farewell(client: Stream) -> None:
    """End what is said to ``client``, let it have it, and close. Never raises; takes two seconds at most."""
    with contextlib.suppress(OSError, Exception):
        async with asyncio.timeout(_BOUND_S):
            client.end()
            room = _MOST
            while room > 0 and (data := await client.read()):
                room -= len(data)
    client.close()
