"""``/mcp``: Streamable HTTP, behind the guard and the authentication of the other paths.

Bodies are read here, with the bounds and the one budget of ``/rpc``, before the SDK sees them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Message, Receive, Scope, Send

from skillyard.config.faces.mcp import McpSettings
from skillyard.domain.errors import Busy, ParseError
from skillyard.domain.principal import Principal
from skillyard.faces.http import request
from skillyard.faces.http.guard import principal_of
from skillyard.faces.http.lifecycle import Lifecycle
from skillyard.faces.http.replies import reply
from skillyard.faces.http.rpc import LargeBodies
from skillyard.faces.mcp.assembly import parts_of
from skillyard.faces.mcp.caller import GONE, Callers, Context
from skillyard.faces.mcp.server import server_of
from skillyard.faces.news import News
from skillyard.faces.rpc.dispatcher import Invoke, Meter, malformed
from skillyard.faces.rpc.wire import VALUE_BYTES, loads, weight
from skillyard.runtime import Runtime
from skillyard.values import dataclass

_SESSION = b"mcp-session-id"
_SOON_MS = 1000


def http_face(runtime: Runtime, call: Invoke, lifecycle: Lifecycle, meter: Meter, news: News) -> McpFace:
    """Returns the face over the methods of a runtime. A stop of the server waits for its calls."""
    settings = runtime.settings
    parts = parts_of(runtime, Callers(call, _principal_of, meter, lifecycle.working), news)
    body_bytes = settings.server.body_bytes
    budget = request.ByteBudget(8 * body_bytes)
    return McpFace(server_of(parts), settings.mcp, body_bytes, budget, parts.changes.close)


def _principal_of(context: Context) -> Principal:
    """Returns the principal of a message: that of the token of the very request that brought it."""
    assert context.request is not None
    return principal_of(context.request.scope)


class McpFace:
    """Serves requests while its task runs."""

    def __init__(
        self,
        server: Server[Any],
        settings: McpSettings,
        body_bytes: int,
        budget: request.ByteBudget,
        close: Callable[[], None],
    ) -> None:
        self._close = close
        self._body_bytes = body_bytes
        self._budget = budget
        self._large = LargeBodies()
        self._sessions = Sessions(settings.sessions_each, settings.session_idle_s)
        self._manager = StreamableHTTPSessionManager(
            server,
            max_request_body_size=body_bytes,
            session_idle_timeout=settings.session_idle_s,
            max_sessions=settings.sessions,
        )

    async def run(self, ready: asyncio.Event, stop: asyncio.Event) -> None:
        """Holds the sessions until ``stop`` is set."""
        async with self._manager.run():
            ready.set()
            await stop.wait()
            self._close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = principal_of(scope)
        with request.Lease(self._budget, principal.name) as lease:
            body = await request.read(scope, receive, self._body_bytes, lease)
            values = weight(body)
            lease.take(values)
            await self._large.turn(principal.name, len(body), values // VALUE_BYTES)
            opens = False
            if body:
                try:
                    told = loads(body)
                    opens = isinstance(told, dict) and told.get("method") == "initialize"
                except ParseError as error:
                    await reply(send, 400, malformed(error).content or b"")
                    return
            scope["user"] = _user(principal)
            replay = _Replay(body, receive)
            scope[GONE] = replay.gone
            with self._sessions.use(principal.name, scope, send, opens=opens) as watched:
                await self._manager.handle_request(scope, replay, watched)


@dataclass(slots=True)
class _Session:
    principal: str
    used_at: float
    at_work: int = 0


class Sessions:
    """Counts the sessions of each principal. The SDK bounds those of all, and ends idle ones by the same clock."""

    def __init__(self, each: int, idle_s: float) -> None:
        self._each = each
        self._idle_s = idle_s
        self._known: dict[str, _Session] = {}
        self._opening: Counter[str] = Counter()

    @contextmanager
    def use(self, principal: str, scope: Scope, send: Send, *, opens: bool) -> Iterator[Send]:
        """Yields the way to answer a request, by which sessions are learnt. Raises Busy for one too many."""
        named = next((value.decode("latin-1") for name, value in scope["headers"] if name == _SESSION), None)
        opens = opens and named is None
        if opens and self._held(principal) >= self._each:
            why = f"this principal has {self._each} sessions (mcp.sessions_each); end some, or use a later revision"
            raise Busy(why, retry_after_ms=_SOON_MS)
        session = None if named is None else self._known.get(named)
        if session is not None:
            session.at_work += 1
        self._opening[principal] += opens

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._learn(principal, scope["method"], named, message, opens=opens)
            await send(message)

        try:
            yield watched
        finally:
            self._opening[principal] -= opens
            self._opening += Counter()  # drops those at zero
            if session is not None:
                session.at_work -= 1
                session.used_at = time.monotonic()

    def _held(self, principal: str) -> int:
        old = time.monotonic() - self._idle_s
        self._known = {name: each for name, each in self._known.items() if each.at_work or each.used_at > old}
        return self._opening[principal] + sum(each.principal == principal for each in self._known.values())

    def _learn(self, principal: str, method: str, named: str | None, message: Message, *, opens: bool) -> None:
        given = next((value for name, value in message["headers"] if name.lower() == _SESSION), None)
        if opens and given is not None and message["status"] < 300:
            self._known[given.decode("latin-1")] = _Session(principal, time.monotonic())
            return
        over = message["status"] == 404 or (method == "DELETE" and message["status"] < 300)
        known = self._known.get(named or "")
        # One that is told 404 for another's session ends nothing.
        if over and named is not None and known is not None and known.principal == principal:
            del self._known[named]


class _Replay:
    """Gives a body that was read already, and then what comes. ``gone`` is done when the client is."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __call__(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self.gone.done():
            self.gone.set_result(None)
        return message


def _user(principal: Principal) -> AuthenticatedUser:
    """Returns whom the SDK binds a session to, so that another principal's token cannot use it."""
    return AuthenticatedUser(AccessToken(token="", client_id=principal.name, scopes=[], subject=principal.name))
