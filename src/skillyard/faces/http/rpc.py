"""``POST /rpc`` (skills-protocol §2, §11)."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from skillyard.domain.errors import Busy, Forbidden
from skillyard.faces.http import body
from skillyard.faces.http.auth import principal_of
from skillyard.faces.http.caller import HttpCaller
from skillyard.faces.http.errors import MethodNotAllowed, PayloadTooLarge, UnsupportedMediaType, headers_of, status_of
from skillyard.faces.http.heavy import Heavy
from skillyard.faces.http.lifecycle import Lifecycle
from skillyard.faces.http.replies import end, reply, start
from skillyard.faces.rpc import Answer, CallerGone, Dispatcher
from skillyard.faces.rpc.wire import VALUE_BYTES, weight

MAX_BODY = 32 * 1024 * 1024
_BY_BLOB = "; store large data as a blob with PUT /blobs, and pass its id in args and in input_blobs"
_UTF8 = ("charset=utf-8", 'charset="utf-8"')


class RpcEndpoint:
    """``budget`` bounds what all requests in work hold together: bodies, the values made of them, large answers."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        lifecycle: Lifecycle,
        budget: body.ByteBudget,
        max_body: int = MAX_BODY,
        pace: body.Pace = body.DEFAULT_PACE,
    ) -> None:
        self._dispatcher = dispatcher
        self._lifecycle = lifecycle
        self._budget = budget
        self._max_body = max_body
        self._pace = pace
        self._heavy = Heavy()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_is_json_post(scope)
        principal = principal_of(scope)
        with self._lifecycle.working(), body.Lease(self._budget, principal.name) as lease:
            try:
                content = await body.read(scope, receive, self._max_body, lease, self._pace)
            except PayloadTooLarge as refused:
                raise PayloadTooLarge(self._max_body, _BY_BLOB) from refused
            values = weight(content)
            lease.take(values)
            await self._heavy.turn(principal.name, len(content), values // VALUE_BYTES)
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
    """Parse and envelope errors are 400, everything past the envelope is 200, save what HTTP has a word for:
    one request that was forbidden (403), or that came when there was no room (429, 503)."""
    if not answer.well_formed:
        return 400
    return status_of(answer.refusal) if isinstance(answer.refusal, (Busy, Forbidden)) else 200
