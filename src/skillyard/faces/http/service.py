"""A server's whole life: listen, start what it serves, announce, serve, drain, stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from typing import Any

from skillyard.faces.http.lifecycle import Lifecycle
from skillyard.faces.http.server import HttpServer

logger = logging.getLogger("skillyard.server")

END_S = 10.0
"""Seconds that the ending of runs may take."""

ANSWER_S = 1.0
"""Seconds that the answers to ended runs may take."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Is set when the server is told to stop; a second time means without waiting."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurry = asyncio.Event()

    def __call__(self) -> None:
        if self.asked.is_set():
            self.hurry.set()
        self.asked.set()


@contextmanager
def on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls ``stop`` for every SIGTERM and SIGINT. Main thread only."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def run_service(
    server: HttpServer,
    sock: socket.socket,
    lifecycle: Lifecycle,
    content: AbstractAsyncContextManager[Mapping[str, Any]],
    *,
    announce: Callable[[], None],
    end_runs: Callable[[], Coroutine[Any, Any, None]],
    stop: StopRequest,
    grace_s: float,
) -> None:
    """Serves on ``sock`` until ``stop`` is called; returns when everything is closed.

    The probes answer at once, and the rest once ``content`` has been entered, which gives the facts for ``/readyz``.
    Then ``announce`` is called. After a stop, work may go on for ``grace_s`` seconds; then ``end_runs`` ends it, so
    that callers get the record of a cancelled run. Errors of ``content`` are raised.
    """
    serving = asyncio.create_task(server.serve([sock]))
    try:
        await _first_of(server.listening, serving)
        async with AsyncExitStack() as stack:
            facts = await _enter(stack, content, stop)
            if facts is not None:
                lifecycle.ready(facts)
                announce()
                await _first_of(stop.asked, serving)
                await _drain(server, lifecycle, end_runs, stop, grace_s)
            await _closed(server, serving)
    finally:
        await _closed(server, serving)


async def _enter(
    stack: AsyncExitStack, content: AbstractAsyncContextManager[Mapping[str, Any]], stop: StopRequest
) -> Mapping[str, Any] | None:
    """Returns what ``content`` gives; None when a stop was asked for before it was ready."""
    this = asyncio.current_task()
    assert this is not None
    watcher = asyncio.create_task(_cancel_when(stop.asked, this))
    try:
        return await stack.enter_async_context(content)
    except asyncio.CancelledError:
        if not stop.asked.is_set():
            raise
        this.uncancel()
        return None
    finally:
        watcher.cancel()


async def _cancel_when(event: asyncio.Event, task: asyncio.Task[Any]) -> None:
    await event.wait()
    task.cancel()


async def _first_of(event: asyncio.Event, task: asyncio.Task[Any]) -> None:
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((waiting, task), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def _drain(
    server: HttpServer,
    lifecycle: Lifecycle,
    end_runs: Callable[[], Coroutine[Any, Any, None]],
    stop: StopRequest,
    grace_s: float,
) -> None:
    lifecycle.drain()
    server.stop_accepting()
    finishing = asyncio.create_task(lifecycle.idle(grace_s))
    await _first_of(stop.hurry, finishing)
    finishing.cancel()
    if not await lifecycle.idle(0):
        await _end(lifecycle, end_runs)
    logger.info("drained")


async def _end(lifecycle: Lifecycle, end_runs: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            await end_runs()
    if not await lifecycle.idle(ANSWER_S):
        lifecycle.stop_waiting()


async def _closed(server: HttpServer, serving: asyncio.Task[None]) -> None:
    server.stop()
    await asyncio.wait((serving,))
    if not serving.cancelled() and (error := serving.exception()) is not None:
        raise error
