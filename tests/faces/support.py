"""What the tests of the faces share: an engine that does as it is told, blobs in memory, a real server."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from skillyard.domain.errors import BlobNotFound, Forbidden, SkillNotFound
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.skill import Skill
from skillyard.engine.blobs.service import BlobService
from skillyard.engine.skills.publishing import Publisher
from skillyard.engine.table import METHODS
from skillyard.faces.http.app import HttpLimits, create_app
from skillyard.faces.http.guard import Bearer, Hosts
from skillyard.faces.http.lifecycle import Lifecycle
from skillyard.faces.http.server import HttpServer, listen
from skillyard.faces.http.service import StopRequest, run_service
from skillyard.faces.observability.metrics import Metrics
from skillyard.faces.rpc.dispatcher import Dispatcher
from skillyard.ports.blobs import BlobInfo
from skillyard.ports.skills import ArchiveForm, Exported

T = TypeVar("T")
Handler = Callable[[Principal, dict[str, Any]], Awaitable[dict[str, Any]]]

ALICE, BOB, ROOT = Principal("alice", frozenset({Scope.BLOBS, Scope.RUN_CODE})), Principal("bob"), Principal("root")
TOKENS = {"alice-token": ALICE, "bob-token": BOB, "root-token": ROOT}
AUTH = {"authorization": "Bearer root-token"}
JSON = {"content-type": "application/json"}


class Engine:
    """Calls the handler set for a method; echoes the parameters where none is set."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.ending = asyncio.Event()

    async def end_runs(self) -> None:
        self.ending.set()

    async def invoke(self, principal: Principal, name: str, params: dict[str, Any]) -> dict[str, Any]:
        principal.require(METHODS[name].scope, METHODS[name].also)
        self.calls.append((principal.name, name, params))
        handler = self.handlers.get(name)
        return await handler(principal, params) if handler else {"echo": params}


class Hanging:
    """A handler that works until it is cancelled or let go."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.released = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, _principal: Principal, _params: dict[str, Any]) -> dict[str, Any]:
        self.started.set()
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return {"status": "completed"}


class Tokens:
    async def verify(self, token: str) -> Principal | None:
        return TOKENS.get(token)


class Blobs:
    """A BlobService in memory."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[BlobInfo, bytes]] = {}
        self.reading = 0

    async def put(self, principal: Principal, kind: str, chunks: AsyncIterator[bytes]) -> BlobInfo:
        principal.require(Scope.BLOBS)
        data = b"".join([chunk async for chunk in chunks])
        sha256 = hashlib.sha256(data).hexdigest()
        info = BlobInfo(f"blob:{len(self.held)}", kind, len(data), sha256, principal.name, 0.0, None)
        self.held[info.blob_id] = info, data
        return info

    async def stat(self, principal: Principal, blob_id: str) -> BlobInfo:
        if not principal.scopes & {Scope.BLOBS, Scope.ADMIN}:
            raise Forbidden("this token lacks the scope 'blobs'")
        info = self.held[blob_id][0] if blob_id in self.held else None
        if info is None or not principal.sees(info.owner):
            raise BlobNotFound("blob_id", "no such blob")
        return info

    async def read(self, blob_id: str, offset: int, length: int) -> AsyncIterator[bytes]:
        data = self.held[blob_id][1]
        self.reading += 1
        try:
            for at in range(offset, offset + length, 65536):
                yield data[at : min(at + 65536, offset + length)]
        finally:
            self.reading -= 1


class NoSkills:
    """A Publisher without skills; tests/attacks/front_door asks a real one."""

    async def publish(self, principal: Principal, _chunks: AsyncIterator[bytes]) -> Any:
        principal.require(Scope.PUBLISH)
        raise NotImplementedError

    async def find(self, _principal: Principal, _name: str, _version: str) -> Skill:
        raise SkillNotFound("name", "no such skill")

    def export(self, principal: Principal, skill: Skill, form: ArchiveForm) -> AbstractAsyncContextManager[Exported]:
        raise NotImplementedError


@dataclass
class Serving:
    """A server that listens. ``stop()`` asks it to drain, ``done`` ends when it has."""

    url: str
    port: int
    engine: Engine
    blobs: Blobs
    lifecycle: Lifecycle
    metrics: Metrics
    server: HttpServer
    stop: StopRequest
    done: asyncio.Task[None] = field(repr=False)


@asynccontextmanager
async def serving(
    limits: HttpLimits | None = None, grace_s: float = 5.0, origins: tuple[str, ...] = ()
) -> AsyncIterator[Serving]:
    """A real uvicorn on a port of its own, with the fakes behind the real faces."""
    engine, blobs, lifecycle, metrics, stop = Engine(), Blobs(), Lifecycle(), Metrics(METHODS), StopRequest()
    app = create_app(
        dispatcher=Dispatcher(METHODS, engine.invoke, metrics.call),
        blobs=lambda: cast("BlobService", blobs),
        skills=lambda: cast("Publisher", NoSkills()),
        authenticator=Bearer(Tokens()),
        hosts=Hosts("127.0.0.1"),
        meter=metrics,
        lifecycle=lifecycle,
        limits=limits,
        origins=origins,
    )
    sock, server, ready = listen("127.0.0.1", 0), HttpServer(app), asyncio.Event()
    port = sock.getsockname()[1]

    @asynccontextmanager
    async def content() -> AsyncIterator[dict[str, Any]]:
        yield {"backend": "none"}

    running = run_service(
        server, sock, lifecycle, content(), announce=ready.set, end_runs=engine.end_runs, stop=stop, grace_s=grace_s
    )
    done = asyncio.create_task(running)
    try:
        await within(ready.wait())
        yield Serving(f"http://127.0.0.1:{port}", port, engine, blobs, lifecycle, metrics, server, stop, done)
    finally:
        stop()
        stop()
        await within(done)


async def within(wait: Coroutine[Any, Any, T] | Awaitable[T], seconds: float = 10.0) -> T:
    """Every wait has a bound."""
    async with asyncio.timeout(seconds):
        return await wait


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Returns once ``condition`` holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def call(method: str, params: Any = None, id: Any = 1) -> bytes:
    """A request's bytes."""
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}).encode()


def head(method: str, path: str, *headers: str, token: str = "root-token") -> bytes:
    """A raw HTTP request's head."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {token}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def post(body: bytes, *headers: str) -> bytes:
    """A whole raw ``POST /rpc``."""
    return head("POST", "/rpc", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers) + body
