"""Work on a thread that nobody leaves before its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


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
