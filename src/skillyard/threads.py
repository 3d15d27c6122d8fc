"""Work that nobody leaves before its end: on a thread, or at a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

_PATIENCE_S = 30.0


async def to_its_end(work: Callable[..., T], *args: object) -> T:
    """Returns the result of ``work`` on a thread.

    A caller that is cancelled meanwhile, however often, goes on until the thread is done: it has let go of its files
    then, and locks around this call are held until then.
    """
    working = asyncio.get_running_loop().run_in_executor(None, work, *args)
    cancelled = False
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        working.exception()
        raise asyncio.CancelledError
    return working.result()


async def answered(request: Coroutine[Any, Any, T]) -> T:
    """Returns the answer to a request that makes something at a server.

    A caller that is cancelled meanwhile waits for the answer, too, though not for ever: a server goes on with a request
    whose sender went away, and only behind its answer can be found what it made.
    """
    asking = asyncio.ensure_future(request)
    try:
        return await asyncio.shield(asking)
    except asyncio.CancelledError:
        with suppress(asyncio.CancelledError):
            await asyncio.wait([asking], timeout=_PATIENCE_S)
        if not asking.done():
            asking.cancel()
        elif not asking.cancelled():
            asking.exception()
        raise
