"""Work on a thread, which nothing can stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def to_its_end(work: Callable[..., T], *args: object) -> T:
    """The result of ``work`` on a thread. Who is cancelled meanwhile, however often, is so when the thread is done:
    what is held around this is held until then."""
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
