"""The HTTP front of the battery's runtime, with a client that passes bytes as they are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from skillyard.domain.principal import Principal, Scope
from skillyard.engine.table import METHODS, invoke
from skillyard.faces.http.guard import Bearer
from skillyard.faces.http.lifecycle import Lifecycle
from skillyard.faces.http.server import HttpServer, listen
from skillyard.faces.observability.logs import quieten_uvicorn
from skillyard.faces.observability.metrics import Metrics
from skillyard.faces.serve import application, with_token
from skillyard.runtime import Runtime

ANSWER_S = 3.0
"""The wait for an answer of a service, in seconds."""
_SCOPES = frozenset({Scope.EXECUTE, Scope.RUN_CODE, Scope.DISCOVER})
VISITOR = Principal("verify-visitor", _SCOPES)
BURGLAR = Principal("verify-burglar", _SCOPES, project="verify-elsewhere")
MOST = 4 * 1024 * 1024
"""The bytes of answers that are taken."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The first answer in ``raw``, which is all that came. ``status`` is 0 where none came."""

    status: int
    fields: Sequence[tuple[bytes, bytes]]
    body: bytes
    raw: bytes

    def values(self, name: bytes) -> list[bytes]:
        return [value for known, value in self.fields if known == name]


def answer_of(raw: bytes) -> Answer:
    """Takes an answer apart. Its body is all that came behind the head."""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    code = first[9:12]
    pairs = [line.partition(b":") for line in lines]
    fields = [(name.strip().lower(), value.strip()) for name, _, value in pairs]
    return Answer(int(code) if first.startswith(b"HTTP/1.") and code.isdigit() else 0, fields, body, raw)


@dataclass(frozen=True, slots=True)
class Front:
    """A front at work. ``token`` is the visitor's, ``strange`` that of somebody of another project."""

    port: int
    domain: str
    token: str
    strange: str

    @property
    def host(self) -> bytes:
        return f"127.0.0.1:{self.port}".encode()

    async def say(self, raw: bytes, seconds: float = 30.0, most: int = MOST) -> Answer:
        """Sends bytes and returns the answer.

        It ends with the connection, after ``seconds``, or at ``most`` bytes.
        """
        got = bytearray()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            with suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(seconds):
                    writer.write(raw)
                    while len(got) < most and (data := await reader.read(65536)):
                        got += data
        finally:
            writer.transport.abort()
        return answer_of(bytes(got))


@asynccontextmanager
async def front(runtime: Runtime) -> AsyncIterator[Front]:
    """Serves an entered runtime over HTTP for the block."""

    async def call(principal: Principal, name: str, params: dict[str, Any]) -> dict[str, Any]:
        return await invoke(runtime.app, principal, name, params)

    async def still(name: str) -> Principal | None:
        return await with_token(runtime, name)

    quieten_uvicorn(logging.WARNING)
    lifecycle = Lifecycle()
    authenticator = Bearer(runtime.tokens, runtime.bound)
    server = HttpServer(application(runtime, authenticator, lifecycle, Metrics(METHODS), still, call))
    token, strange = [await runtime.tokens.create(each) for each in (VISITOR, BURGLAR)]
    with listen("127.0.0.1", 0) as sock:
        runtime.app.services.endpoints.own_port = port = sock.getsockname()[1]
        serving = asyncio.create_task(server.serve([sock]))
        try:
            await server.listening.wait()
            lifecycle.ready({})
            yield Front(port, runtime.settings.services.domain, token, strange)
        finally:
            server.stop()
            await serving
