"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from threading import Thread
from typing import Any, TypeVar

from skillyard.watches import new_event_loop

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread: the one place where the synchronous runtime starts one."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    @property
    def running(self) -> bool:
        return self._loop is not None

    def start(self) -> None:
        if self._loop is None:
            self._loop = new_event_loop()
            self._thread = Thread(target=self._loop.run_forever, name="skillyard-runtime", daemon=True)
            self._thread.start()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result; when this thread is interrupted meanwhile, the coroutine is cancelled."""
        if self._loop is None:
            coroutine.close()
            raise RuntimeError("the runtime is not open: use 'with SyncRuntime(...)'")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._loop = self._thread = None
        asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop).result()
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
