"""Bytes both ways between a sandbox and what it reached, until both ends are read or one is gone."""

from __future__ import annotations

import asyncio

from skillyard.egress.stream import Stream
from skillyard.egress.upstream import Upstream


async def relay(client: Stream, upstream: Upstream, first: bytes = b"") -> None:
    """``first`` was read from the client and goes before the rest; so does what either stream was given back.
    Returns when both have ended; closes both."""
    try:
        if first:
            await upstream.write(first)
        async with asyncio.TaskGroup() as both:
            both.create_task(_flow(client, upstream))
            both.create_task(_flow(upstream, client))
    finally:
        client.close()
        upstream.close()


async def _flow(source: Stream, target: Stream) -> None:
    while data := await source.read():
        await target.write(data)
    target.end()
