"""From the bytes of a request to the bytes of its answer, knowing nothing of HTTP."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any, Protocol

from skillyard.domain.errors import (
    Busy,
    InvalidInput,
    InvalidRequest,
    MethodNotFound,
    ParseError,
    SkillyardError,
    shape,
)
from skillyard.domain.principal import Principal
from skillyard.faces.rpc import wire
from skillyard.faces.rpc.wire import CallerGone, Request, error_object, loads
from skillyard.values import dataclass

logger = logging.getLogger("skillyard.rpc")

MAX_BATCH = 16
MAX_BATCH_ANSWER = 32 * 1024 * 1024
"""Bytes of answers after which the rest of a batch is refused rather than executed."""

Invoke = Callable[[Principal, str, dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]]
Meter = Callable[[str, str, float], None]
"""Told of every call: its method, its outcome (``ok`` or the error's type), its seconds."""


class MethodInfo(Protocol):
    @property
    def runs(self) -> bool:
        """Returns whether it starts foreign code, which ends when its caller goes away."""
        ...

    @property
    def waits(self) -> bool:
        """Returns whether it may wait long for something that only its caller wants to know."""
        ...


class Caller(Protocol):
    """The caller that waits for an answer."""

    @property
    def gone(self) -> bool: ...

    def hold(self, count: int) -> None:
        """Takes room for so many bytes of its answer until they were sent. Raises Busy when too many wait to be."""
        ...

    async def wait(self, call: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        """Returns the call's result. Raises CallerGone after cancelling the call when the caller went away."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """``content`` is None when nothing is to be sent back: only notifications came.

    ``well_formed`` is False for parse and envelope errors of the body as a whole. ``refusal`` is the error
    when the body was one request and it was refused. ``full`` when it was executed, and there was no room to answer.
    """

    content: bytes | None
    well_formed: bool = True
    refusal: SkillyardError | None = None
    full: bool = False


class Dispatcher:
    """Serves a table of methods. ``invoke`` checks scope and parameters and raises SkillyardError."""

    def __init__(self, methods: Mapping[str, MethodInfo], invoke: Invoke, meter: Meter) -> None:
        self._methods = methods
        self._invoke = invoke
        self._meter = meter

    async def answer(self, body: bytes, principal: Principal, caller: Caller) -> Answer:
        """Raises CallerGone when the caller of a single run went away."""
        try:
            value = loads(body)
            if isinstance(value, list):
                _check_batch(value)
                return await self._batch(value, principal, caller)
            request = wire.read_request(value)
        except (ParseError, InvalidRequest) as exc:
            return malformed(exc)
        return await self._single(request, principal, caller)

    async def _single(self, request: Request, principal: Principal, caller: Caller) -> Answer:
        if request.notification:
            await self._notify(request, principal, caller)
            return Answer(None)
        try:
            value = await self._measured(request, principal, caller)
            return _paid(request, wire.result(request.id, value), caller)
        except CallerGone:
            raise
        except Exception as exc:  # noqa: BLE001 - error_object logs what is our fault
            return _refused(request, exc)

    async def _batch(self, values: list[Any], principal: Principal, caller: Caller) -> Answer:
        parts: list[bytes] = []
        so_far = 0
        for value in values:
            answer = await self._entry(value, principal, caller, so_far)
            if answer.content is not None:
                parts.append(answer.content)
                so_far += len(answer.content)
            if answer.full:
                so_far = MAX_BATCH_ANSWER + 1
        return Answer(b"[" + b",".join(parts) + b"]" if parts else None)

    async def _entry(self, value: Any, principal: Principal, caller: Caller, so_far: int) -> Answer:
        try:
            request = wire.read_request(value)
        except InvalidRequest as exc:
            return Answer(wire.failure(exc.id, error_object(exc)))
        if so_far > MAX_BATCH_ANSWER and not request.notification:
            refusal = Busy(f"the answers of this batch passed {MAX_BATCH_ANSWER} bytes", retry_after_ms=0)
            return Answer(_failure(request, refusal))
        try:
            return await self._single(request, principal, caller)
        except CallerGone:
            return Answer(None)

    async def _notify(self, request: Request, principal: Principal, caller: Caller) -> None:
        """Calls without an answer; what goes wrong is only logged (skills-protocol §2)."""
        method = self._methods.get(request.method)
        try:
            if method is not None and method.runs:
                raise InvalidRequest("a run needs an id: nobody would see its result")
            await self._measured(request, principal, caller)
        except SkillyardError as exc:
            extra = {"method": request.method[:64], "type": exc.type, "principal": principal.name}
            logger.warning("notification refused", extra=extra)
        except CallerGone:
            return
        except Exception as exc:  # noqa: BLE001 - logged under an incident id
            error_object(exc)

    async def _measured(self, request: Request, principal: Principal, caller: Caller) -> dict[str, Any]:
        started, outcome = perf_counter(), "ok"
        try:
            return await self._call(request, principal, caller)
        except CallerGone:
            outcome = "CallerGone"
            raise
        except Exception as exc:
            outcome = exc.type if isinstance(exc, SkillyardError) else "InternalError"
            raise
        finally:
            name = request.method if request.method in self._methods else "unknown"
            self._meter(name, outcome, perf_counter() - started)

    def _call(self, request: Request, principal: Principal, caller: Caller) -> Awaitable[dict[str, Any]]:
        method = self._methods.get(request.method)
        if method is None:
            known = ", ".join(filter(principal.may_call, self._methods))
            raise MethodNotFound(f"method: there is none of this name; there are {known or 'none'}")
        if not isinstance(request.params, dict):
            rule = "must be an object: parameters go by name"
            raise InvalidInput("params", rule, shape(request.params))
        detached = request.params.get("detach") is True
        if caller.gone and not detached:
            raise CallerGone
        call = self._invoke(principal, request.method, request.params)
        return caller.wait(call) if method.waits or (method.runs and not detached) else call


def malformed(exc: ParseError | InvalidRequest) -> Answer:
    """Returns the answer to a body that is not a valid request or batch."""
    id = exc.id if isinstance(exc, InvalidRequest) else None
    return Answer(wire.failure(id, error_object(exc)), well_formed=False)


def _check_batch(values: list[Any]) -> None:
    if not values:
        raise InvalidRequest("a batch holds at least one request")
    if len(values) > MAX_BATCH:
        raise InvalidRequest(f"a batch holds at most {MAX_BATCH} requests (got {len(values)})", limit=MAX_BATCH)


def _paid(request: Request, content: bytes, caller: Caller) -> Answer:
    try:
        caller.hold(len(content))
    except Busy as busy:
        return replace(_refused(request, busy), full=True)
    return Answer(content)


def _refused(request: Request, exc: Exception) -> Answer:
    answer = Answer(_failure(request, exc), refusal=exc if isinstance(exc, SkillyardError) else None)
    exc.__traceback__ = None  # its frames hold the request, and the answer holds it: memory for the collector
    return answer


def _failure(request: Request, exc: Exception) -> bytes:
    return wire.failure(request.id, error_object(exc))
