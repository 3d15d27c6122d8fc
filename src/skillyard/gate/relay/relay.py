"""Bytes both ways between a sandbox and what it reached, until both have ended or one is gone."""

from __future__ import annotations

import asyncio

from skillyard.gate.failures import Refused, Unreachable
from skillyard.gate.farewell import farewell
from skillyard.gate.relay.guard import Guard
from skillyard.gate.relay.guarded import Guarded
from skillyard.gate.relay.raw import Pump
from skillyard.gate.relay.stream import Stream
from skillyard.gate.upstream import Upstream


async def relay(client: Stream, upstream: Upstream, first: bytes = b"", guard: Guard | None = None) -> None:
    """``first`` was read from the client already. ``guard`` judges what is said until it is raw. Both streams are
    closed when this returns or raises: OSError, Refused, Unreachable or Ended, the client having been told."""
    guarded = None if guard is None else Guarded(client, upstream, guard)
    watch = _Watch(client, upstream, guarded)
    try:
        if guarded is not None:
            await guarded.run(first)
        elif first:
            await upstream.write(first)
        if guard is None or guard.raw:
            watch.guarded = None
            await Pump(client, upstream).over
        await farewell(client)
    except Refused as trouble:
        upstream.refuse(trouble.reason)
        await farewell(client)
        raise
    except Unreachable as trouble:
        upstream.abort(trouble)
        await farewell(client)
        raise
    except BaseException:
        client.reset()
        raise
    finally:
        watch.stop()
        upstream.close()


async def confer(client: Stream, upstream: Upstream, guard: Guard) -> None:
    """One exchange: until ``guard`` is raw or over, or both have ended. Both streams stay open; raises as
    :func:`relay` does, the client having been told what the guard had to say."""
    guarded = Guarded(client, upstream, guard)
    watch = _Watch(client, upstream, guarded)
    try:
        await guarded.run(b"")
    finally:
        watch.stop()


class _Watch:
    """One timer for the life of a connection, set on where bytes have gone by meanwhile."""

    def __init__(self, client: Stream, upstream: Upstream, guarded: Guarded | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._upstream = upstream
        self._limits = upstream.session.limits
        self.guarded = guarded
        self._timer = self._loop.call_soon(self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        limits, reason = self._limits, "no byte"
        due = max(self._client.moved, self._upstream.moved) + limits.idle_s
        within = limits.idle_s
        owing = self.guarded.owing_since if self.guarded is not None else None
        if owing is not None and owing + limits.header_s < due:
            due, within, reason = owing + limits.header_s, limits.header_s, "no whole request or greeting"
        if self._loop.time() >= due:
            self._upstream.stop(f"{reason} within {within:g} s")
        else:
            again = min(due, self._loop.time() + limits.header_s) if self.guarded is not None else due
            self._timer = self._loop.call_at(again, self._look)
