"""``POST /rpc`` (skills-protocol §2, §11), large bodies one after the other.

A body is parsed, checked and encoded in steps of tens of milliseconds each, on the one event loop that serves all. A
server that has other callers spends a tenth of its time on large bodies, so that a sender of one large body after the
other does not hold up senders of small ones.
"""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send

from skillyard.domain.errors import Busy, Forbidden
from skillyard.faces.http import request
from skillyard.faces.http.errors import MethodNotAllowed, PayloadTooLarge, UnsupportedMediaType, headers_of, status_of
from skillyard.faces.http.guard import principal_of
from skillyard.faces.http.lifecycle import Lifecycle
from skillyard.faces.http.replies import end, reply, start
from skillyard.faces.http.request import HttpCaller
from skillyard.faces.rpc.dispatcher import Answer, Dispatcher
from skillyard.faces.rpc.wire import VALUE_BYTES, CallerGone, weight

_SECONDS_A_BYTE, _SECONDS_A_VALUE = 10e-9, 1.5e-6
"""Measured: 31 MiB of text take 0.3 s until they are with the sandbox, and a million small values 1.5 s."""
_LARGE_S = 0.0025
_REST = 9.0
_LATELY_S = 1.0


class LargeBodies:
    """Makes large bodies take turns, with pauses for the small requests of others."""

    def __init__(self) -> None:
        self._line = asyncio.Lock()
        self._free_at = 0.0
        self._last: tuple[str, float] = ("", 0.0)
        self._last_other = 0.0

    async def turn(self, principal: str, size: int, values: int) -> None:
        """Returns when a body of so many bytes and JSON values may be worked on.

        That is at once unless it is large and another large one came before.
        """
        clock, work_s = asyncio.get_running_loop().time, size * _SECONDS_A_BYTE + values * _SECONDS_A_VALUE
        self._note(principal, clock())
        if work_s <= _LARGE_S:
            return
        async with self._line:
            if (left := self._free_at - clock()) > 0 and self._has_others(clock()):
                await asyncio.sleep(left)
            self._free_at = clock() + work_s * (1 + _REST)

    def _note(self, principal: str, now: float) -> None:
        before, at = self._last
        if before != principal:
            self._last_other = at
        self._last = (principal, now)

    def _has_others(self, now: float) -> bool:
        """Returns whether more than one principal has called lately."""
        return now - self._last_other < _LATELY_S


MAX_BODY = 32 * 1024 * 1024
_BY_BLOB = "; store large data as a blob with PUT /blobs, and pass its id in args and in input_blobs"
_UTF8 = ("charset=utf-8", 'charset="utf-8"')


class RpcEndpoint:
    """``POST /rpc``. ``budget`` bounds the bodies, values and large answers of all requests."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        lifecycle: Lifecycle,
        budget: request.ByteBudget,
        max_body: int = MAX_BODY,
        pace: request.Pace = request.DEFAULT_PACE,
    ) -> None:
        self._dispatcher = dispatcher
        self._lifecycle = lifecycle
        self._budget = budget
        self._max_body = max_body
        self._pace = pace
        self._large = LargeBodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_is_json_post(scope)
        principal = principal_of(scope)
        with self._lifecycle.working(), request.Lease(self._budget, principal.name) as lease:
            try:
                content = await request.read(scope, receive, self._max_body, lease, self._pace)
            except PayloadTooLarge as refused:
                raise PayloadTooLarge(self._max_body, _BY_BLOB) from refused
            values = weight(content)
            lease.take(values)
            await self._large.turn(principal.name, len(content), values // VALUE_BYTES)
            async with HttpCaller(receive, self._lifecycle, lease) as caller:
                try:
                    answer = await self._dispatcher.answer(content, principal, caller)
                except CallerGone:
                    return
            await _send(send, answer)


def check_is_json_post(scope: Scope) -> None:
    """Raises MethodNotAllowed and UnsupportedMediaType."""
    if scope["method"] != "POST":
        raise MethodNotAllowed("POST")
    kind = None
    for name, value in scope["headers"]:
        if name == b"content-type":
            kind = value.decode("latin-1") if kind is None else ""
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise UnsupportedMediaType("Content-Encoding: compressed bodies are not taken")
    if kind != "application/json" and not _is_json(kind or ""):
        raise UnsupportedMediaType("Content-Type: must be application/json, with charset utf-8 if any")


def _is_json(content_type: str) -> bool:
    essence, *parameters = (part.strip().lower() for part in content_type.split(";"))
    return essence == "application/json" and all(p in _UTF8 for p in parameters if p)


async def _send(send: Send, answer: Answer) -> None:
    if answer.content is None:
        await start(send, 204, {})
        await end(send)
    else:
        headers = headers_of(answer.refusal) if answer.refusal else {}
        await reply(send, _status(answer), answer.content, headers=headers)


def _status(answer: Answer) -> int:
    """Returns 400 for parse and envelope errors, and 200 for everything past the envelope.

    HTTP has its own status for a single request that is forbidden (403) or finds no room (429, 503).
    """
    if not answer.well_formed:
        return 400
    return status_of(answer.refusal) if isinstance(answer.refusal, (Busy, Forbidden)) else 200
