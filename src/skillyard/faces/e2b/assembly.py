"""Puts the face together from a runtime. It is imported where the settings ask for it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from skillyard.domain.errors import Forbidden, StoreFault
from skillyard.domain.work.record import RunRecord
from skillyard.faces.e2b.access import KEY_BYTES, TRAFFIC, Access, Tokens
from skillyard.faces.e2b.app import CODE_PORT, ENVD_PORT, Door, E2b, refusal
from skillyard.faces.e2b.call import Call, Intake
from skillyard.faces.e2b.code import Code
from skillyard.faces.e2b.daemon import WORKSPACE, Daemon
from skillyard.faces.e2b.files import PATH, Files
from skillyard.faces.e2b.filesystem import Names, ask
from skillyard.faces.e2b.process import Processes
from skillyard.faces.e2b.sandboxes import Lifecycle
from skillyard.faces.e2b.watch import Watches
from skillyard.faces.http.errors import Misdirected
from skillyard.faces.http.guard import Authenticator, Hosts, check_head, is_named
from skillyard.faces.http.lifecycle import Lifecycle as ServerLife
from skillyard.faces.http.replies import Count, Edge
from skillyard.faces.http.request import ByteBudget
from skillyard.faces.http.server import MAX_CONNECTIONS
from skillyard.faces.http.services.endpoint import Passes
from skillyard.faces.http.services.revocation import Still
from skillyard.runtime import Runtime

KEY_FILE = "e2b.key"


class E2bFace:
    """The face of one runtime. Calling it puts the face before an application."""

    def __init__(
        self, runtime: Runtime, authenticator: Authenticator, still: Still, life: ServerLife, hosts: Hosts
    ) -> None:
        settings = runtime.settings
        tokens = Tokens(cache(partial(key_of, settings.data_dir / KEY_FILE)))
        access = Access(lambda: runtime.app.sandboxes, authenticator, still, tokens, time.time)
        self.passes = Passes(TRAFFIC, access.of_traffic)
        watches = Watches(life, lambda work, name: runtime.app.sandboxes.spawn(work, name))
        calls = {**Processes(life).calls(), **Names().calls(), **watches.calls()}
        daemon = Daemon(access, lambda: runtime.app.sandboxes, calls)
        files = Files(access, daemon, life, settings.e2b_server.file_bytes)

        async def envd(call: Call, named: str) -> None:
            await (files if call.path == PATH else daemon)(call, named)

        async def look(record: RunRecord) -> Mapping[str, Any]:
            return await ask(await daemon.place(record), "usage", WORKSPACE)

        lifecycle = Lifecycle(
            sandboxes=lambda: runtime.app.sandboxes,
            history=lambda: runtime.app.history,
            clock=runtime.clock,
            tokens=tokens,
            settings=settings.e2b_server,
            network=settings.network,
            services=settings.services,
            own_port=lambda: runtime.app.services.endpoints.own_port or 0,
            environments=lambda: settings.environments,
            look=look,
        )
        body = settings.server.body_bytes
        intake = Intake(body, ByteBudget(8 * body), MAX_CONNECTIONS // 4)
        code = Code(access, daemon, lambda: runtime.app.sandboxes, life)
        e2b = E2b(access, lifecycle, {ENVD_PORT: envd, CODE_PORT: code}, intake, life, settings.services.domain)
        self._guard = _Guard(e2b, hosts, settings.services.domain)

    def __call__(self, app: ASGIApp, count: Count) -> ASGIApp:
        return Door(app, Edge(self._guard, count, shape=refusal))


class _Guard:
    """ASGI middleware: checks Host, Origin and framing. A sandbox's own host name is ours, too."""

    def __init__(self, app: ASGIApp, hosts: Hosts, domain: str) -> None:
        self._app = app
        self._hosts = hosts
        self._domain = f".{domain}" if domain else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host, origins = check_head(scope)
        name = host.partition(":")[0]
        if not is_named(host, self._hosts) and not (self._domain and name.endswith(self._domain)):
            raise Misdirected("Host: is none of this server's names; see the setting allowed_hosts")
        if any(origin != f"{scope['scheme']}://{host}" for origin in origins):
            raise Forbidden("Origin: pages of other sites may not call this server")
        await self._app(scope, receive, send)


def key_of(file: Path) -> bytes:
    """Returns the key of sandboxes' access tokens, made when it is missing. Raises StoreFault for a damaged one."""
    made = file.with_name(f".{file.name}.{os.getpid()}")
    if not file.exists():
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(os.urandom(KEY_BYTES))
        made.replace(file)
    key = file.read_bytes()
    if len(key) != KEY_BYTES:
        raise StoreFault(f"{file.name} must hold {KEY_BYTES} bytes; remove it, and sandboxes get new access tokens")
    return key
