"""The door and the routes of E2B's API.

A request is for a sandbox when it names one: by E2B's headers, by a host name of a sandbox's own, or by a signed URL.
Any other one below a path of E2B's is for its API.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skillyard.domain.errors import Unauthenticated
from skillyard.faces.e2b.access import Access
from skillyard.faces.e2b.call import Call, Intake
from skillyard.faces.e2b.errors import ApiRefusal, NotHere, Told, api_refusal, rpc_refusal
from skillyard.faces.e2b.sandboxes import Lifecycle
from skillyard.faces.http.lifecycle import Lifecycle as ServerLife
from skillyard.faces.http.replies import BrokenResponse, end, reply, start
from skillyard.faces.rpc.wire import dumps

ENVD_PORT, CODE_PORT = 49983, 49999
"""The ports by which the SDKs name the daemon of a sandbox, and its code interpreter."""
ID_HEADER, PORT_HEADER = b"e2b-sandbox-id", b"e2b-sandbox-port"
_API = re.compile(
    r"/(?:v[23]/)?(?:sandboxes|templates|snapshots|secrets|volumes|volumecontent|teams|nodes|projects|access-tokens|api-keys)(?:/.*)?"
)
_FILES = "/files"
_OF_SANDBOX = re.compile(rb"(?:49983|49999)-[a-z0-9]{1,52}\..{1,253}", re.DOTALL)
_NOT_HERE = {
    "templates": "templates are not built here: environments and images are (skillyard environment, skillyard image)",
    "snapshots": "there are no snapshots of sandboxes",
    "secrets": "secrets are kept by 'skillyard secret', and belong to skills",
    "volumes": "there are no volumes",
    "volumecontent": "there are no volumes",
}
Daemon = Callable[[Call, str], Awaitable[None]]
"""Answers a request to a sandbox. The text is the id by which it names it; empty for a signed URL."""


class Door:
    """ASGI middleware: ``e2b`` gets the requests of E2B's programs, ``app`` all others."""

    def __init__(self, app: ASGIApp, e2b: ASGIApp) -> None:
        self._app = app
        self._e2b = e2b

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._e2b if _is_e2bs(scope) else self._app)(scope, receive, send)


def _is_e2bs(scope: Scope) -> bool:
    if scope["path"] == _FILES or _API.fullmatch(scope["path"]):
        return True
    return any(
        name == ID_HEADER or (name == b"host" and _OF_SANDBOX.fullmatch(value.lower()))
        for name, value in scope["headers"]
    )


class E2b:
    """Answers the API, and passes requests for sandboxes on to ``daemons`` by their port."""

    def __init__(
        self,
        access: Access,
        lifecycle: Lifecycle,
        daemons: dict[int, Daemon],
        intake: Intake,
        life: ServerLife,
        domain: str,
    ) -> None:
        self._access = access
        self._lifecycle = lifecycle
        self._daemons = daemons
        self._intake = intake
        self._life = life
        self._host = re.compile(rf"([0-9]{{5}})-([a-z0-9]{{1,52}})\.{re.escape(domain)}(?::[0-9]{{1,5}})?")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._life.check()
        call = Call(scope, receive, send, self._intake)
        place = self._place(call)
        if place is None:
            await self._api(call)
            return
        port, named = place
        daemon = self._daemons.get(port)
        if daemon is None:
            raise ApiRefusal(502, f"port {port} of a sandbox is reached by its host name: the port is not open here")
        if named:
            await self._passed(call, daemon, named)
        else:
            await daemon(call, named)

    async def _passed(self, call: Call, daemon: Daemon, named: str) -> None:
        """Passes a request on, and cuts it when the owner of its sandbox loses its token meanwhile."""
        send, begun = call.send, False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        call.send = noted
        try:
            async with self._access.while_good(named):
                await daemon(call, named)
        except TimeoutError:
            lost = Unauthenticated("the token of this sandbox's owner was revoked", presented=True)
            raise BrokenResponse(lost.message) if begun else lost from None

    def _place(self, call: Call) -> tuple[int, str] | None:
        """Returns the port and the id of the sandbox that a request is for; None for one of the API."""
        host = self._host.fullmatch(call.header("host").lower())
        named = call.header(ID_HEADER.decode())
        if host is not None:
            if named and named != host[2]:
                raise ApiRefusal(400, "E2b-Sandbox-Id: names another sandbox than Host")
            return int(host[1]), host[2]
        if named:
            port = call.header(PORT_HEADER.decode()) or str(ENVD_PORT)
            if not (port.isascii() and port.isdigit() and len(port) < 6):
                raise ApiRefusal(400, "E2b-Sandbox-Port: must be a port")
            return int(port), named
        return (ENVD_PORT, "") if call.path == _FILES else None

    async def _api(self, call: Call) -> None:
        principal = await self._access.principal(call.scope)
        with self._life.working():
            answer = await self._called(call, principal)
        status, content, *more = answer
        body = b"" if content is None else dumps(content)
        if status == 204:
            await start(call.send, status, {})
            await end(call.send)
            return
        await reply(call.send, status, body, headers=more[0] if more else None)

    async def _called(self, call: Call, principal: Any) -> tuple[Any, ...]:
        api = self._lifecycle
        parts = [part for part in call.path.split("/") if part]
        if parts[0] in ("v2", "v3"):
            parts = parts[1:]
        match call.method, parts:
            case "POST", ["sandboxes"]:
                return await api.create(principal, call)
            case "GET", ["sandboxes"]:
                return await api.list(principal, call)
            case "GET", ["sandboxes", named]:
                return await api.info(principal, named)
            case "DELETE", ["sandboxes", named]:
                return await api.end(principal, named)
            case "POST", ["sandboxes", named, "connect"]:
                return await api.connect(principal, named, call)
            case "POST", ["sandboxes", named, "timeout"]:
                return await api.set_timeout(principal, named, call)
            case "POST", ["sandboxes", named, "refreshes"]:
                return await api.refresh(principal, named, call)
            case "PUT", ["sandboxes", named, "network"]:
                return await api.set_network(principal, named, call)
            case "POST", ["sandboxes", named, "pause"]:
                return await api.pause(principal, named, call)
            case "POST", ["sandboxes", named, "resume"]:
                return await api.resume(principal, named, call)
            case "GET", ["sandboxes", named, "metrics"]:
                return await api.metrics(principal, named)
            case _, ["sandboxes", named, word, *_]:
                await api.info(principal, named)
                raise NotHere(f"{call.method} {word}: this server has no such call for sandboxes")
        raise NotHere(
            _NOT_HERE.get(parts[0] if parts else "", f"{call.method} {call.path[:80]}: is not a call of this server")
        )


def refusal(scope: Scope, exc: Exception) -> Told:
    """Returns the answer to a request that is refused, in the shape of what it called."""
    is_rpc = ".Process/" in scope["path"] or ".Filesystem/" in scope["path"]
    return rpc_refusal(exc) if is_rpc else api_refusal(exc)
