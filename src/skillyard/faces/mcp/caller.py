"""Calls methods for a client, and ends the call when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any, TypeVar

import anyio
from mcp.server.context import ServerRequestContext

from skillyard.domain.errors import SkillyardError
from skillyard.domain.principal import LOCAL, Principal
from skillyard.faces.rpc.dispatcher import Invoke, Meter
from skillyard.faces.rpc.wire import CallerGone
from skillyard.values import dataclass

T = TypeVar("T")
Context = ServerRequestContext[Any, Any]
GONE = "skillyard.mcp.gone"
"""The key in a scope of HTTP for the future that is done when the client closed its connection."""


def local(_context: Context) -> Principal:
    return LOCAL


def _no_meter(_method: str, _outcome: str, _seconds: float) -> None:
    return


@dataclass(frozen=True, slots=True)
class Callers:
    """Calls methods as the principal of a request. ``working`` counts a call that a stop of the server waits for."""

    invoke: Invoke
    principal_of: Callable[[Context], Principal] = local
    meter: Meter = _no_meter
    working: Callable[[], AbstractContextManager[None]] = nullcontext

    async def call(self, context: Context, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a method's answer. Raises what the method raises, and CallerGone once the call has ended."""
        started, outcome = perf_counter(), "ok"
        try:
            with self.working():
                return await until_gone(context, self.invoke(self.principal_of(context), method, dict(params)))
        except SkillyardError as error:
            outcome = error.type
            raise
        except BaseException as error:
            outcome = "InternalError" if isinstance(error, Exception) else "CallerGone"
            raise
        finally:
            self.meter(method, outcome, perf_counter() - started)


async def until_gone(context: Context, call: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a call. When its client cancels it or goes away, it is ended first.

    Raises CallerGone for a client that closed its connection.
    """
    gone = context.request.scope.get(GONE) if context.request is not None else None
    if gone is not None and gone.done():
        call.close()
        raise CallerGone("the client went away")
    task = asyncio.create_task(call)
    try:
        await asyncio.wait({task} if gone is None else {task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # A scope of anyio cancels each wait within it anew: the end of the call is waited for beside it.
        with anyio.CancelScope(shield=True):
            while not task.done():
                task.cancel()
                await asyncio.wait({task})
    if task.cancelled():
        raise CallerGone("the client went away")
    return task.result()
