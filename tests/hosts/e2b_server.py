"""A stand-in for E2B: its lifecycle API and the daemon of its machines, for the unmodified SDK.

It makes real namespaces and runs commands for real. ``POST /test`` tells it to throttle or to fail; ``GET /test`` tells
its machines. It speaks HTTP/1.1 on loopback::

    python -m tests.hosts.e2b_server PORT BAKED LOCAL

The templates ``baked``, ``cold``, ``dead`` and ``older`` have the directory BAKED as /opt/skillyard, and ``node`` a
node that takes types out. Those of the four but ``cold`` were built with a start command: as with a provider that keeps
the memory of a machine, the command is at work in each of theirs, and the ready command has passed. Of ``baked`` a few
machines are kept ahead, once one was asked for. They are made again at rest, and on the spot where none is left.
``local`` has the directory as /usr/local to which LOCAL is a link.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import secrets
import signal
import struct
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.hosts.e2b_machines import Machine

API_KEY = "e2b_0123456789abcdef"
NODE = Path("/usr/local/lib/skillyard-ci/mcp-clients/node_modules/node/bin/node")
_AFTER = {
    "baked": "true",
    "dead": "kill -9 $(cat /run/skillyard/waits/*/pid)",
    "older": "mv /run/skillyard/waits/* /run/skillyard/waits/of-another-release",
}
"""Templates with a start command, and what befell it since."""
TEMPLATES = ("base", "other", "cold", "local", *_AFTER, *(("node",) if NODE.exists() else ()))
STARTED = "baked"
_START, _READY = "/opt/skillyard/start.sh", "/opt/skillyard/ready.sh"
_AHEAD, _REST_S = 3, 0.3
_ENVD = "0.6.7"
_PIECES = 32


@dataclass
class Command:
    """A command in a machine. What it says goes to the one stream that reads it; with none, it is dropped."""

    number: int
    process: asyncio.subprocess.Process
    events: asyncio.Queue[dict[str, Any]] = field(default_factory=lambda: asyncio.Queue(_PIECES))
    read: bool = True
    pumps: list[asyncio.Task[None]] = field(default_factory=list)

    async def tell(self, event: dict[str, Any]) -> None:
        if self.read:
            await self.events.put(event)


@dataclass
class Lent:
    """A machine that was lent, with all that the API tells of it."""

    id: str
    template: str
    metadata: dict[str, str]
    order: dict[str, Any]
    token: str
    machine: Machine
    began: float
    ends: float
    timer: asyncio.TimerHandle | None = None
    commands: dict[int, Command] = field(default_factory=dict)

    def told(self) -> dict[str, Any]:
        return {
            "templateID": self.template, "alias": self.template, "sandboxID": self.id, "clientID": "tests",
            "startedAt": _time(self.began), "endAt": _time(self.ends), "envdVersion": _ENVD, "state": "running",
            "cpuCount": os.cpu_count() or 1, "memoryMB": 1024, "diskSizeMB": 1024, "metadata": self.metadata,
        }  # fmt: skip


class StandIn:
    """All machines, and the faults that tests asked for."""

    def __init__(self) -> None:
        self.lent: dict[str, Lent] = {}
        self.keys: dict[str, asyncio.Future[Lent]] = {}
        self.faults: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.numbers = 0
        self.ahead: list[Machine] = []
        self.filling: asyncio.Task[None] | None = None
        self.rested, self.closing = 0.0, False

    def fault(self, request: Request) -> Response | None:
        """The answer of a fault for this request, if one was asked for."""
        called = f"{request.method} {request.url.path}"
        for fault in self.faults:
            if fault["count"] > 0 and fault["path"] in called:
                fault["count"] -= 1
                if "body" in fault:
                    return Response(fault["body"], fault["status"], media_type="application/json")
                headers = {"Retry-After": "0"} if fault.get("soon", True) else {}
                return _error(fault["status"], fault.get("message", "as a test asked"), headers)
        return None

    async def create(self, request: Request) -> Response:
        order = await request.json()
        if order["templateID"] not in TEMPLATES:
            return _error(404, f"template '{order['templateID']}' not found")
        key = request.headers.get("Idempotency-Key", secrets.token_hex(8))
        if key not in self.keys:
            self.keys[key] = asyncio.get_running_loop().create_future()
            self.keys[key].set_result(await self._made(order))
        lent = await self.keys[key]
        answer = {name: value for name, value in lent.told().items() if name not in ("metadata",)}
        return JSONResponse({**answer, "envdAccessToken": lent.token}, 201)

    async def _made(self, order: dict[str, Any]) -> Lent:
        template, now = order["templateID"], time.time()
        started = template == STARTED
        machine = self.ahead.pop() if started and self.ahead else await _machine(template)
        id = machine.id
        lent = Lent(id, template, order.get("metadata") or {}, order, secrets.token_hex(8), machine, now, now)
        self.lent[id] = lent
        if started:
            self.rested = time.monotonic() + _REST_S
            if self.filling is None or self.filling.done():
                self.filling = asyncio.create_task(self._fill())
        self.keep(lent, order.get("timeout", 15))
        return lent

    async def _fill(self) -> None:
        while len(self.ahead) < _AHEAD:
            while (left := self.rested - time.monotonic()) > 0:
                await asyncio.sleep(left)
            if self.closing:
                return
            self.ahead.append(await _machine(STARTED))

    def keep(self, lent: Lent, seconds: float) -> None:
        if lent.timer is not None:
            lent.timer.cancel()
        lent.ends = time.time() + seconds
        loop = asyncio.get_running_loop()
        lent.timer = loop.call_later(seconds, lambda: loop.create_task(self.end(lent.id)))

    async def end(self, id: str) -> None:
        if (lent := self.lent.pop(id, None)) is not None:
            if lent.timer is not None:
                lent.timer.cancel()
            await lent.machine.kill()
            for command in tuple(lent.commands.values()):  # each leaves when its output has ended
                await command.process.wait()

    async def lifecycle(self, request: Request) -> Response:
        """Everything below /sandboxes."""
        self.asked.append(f"{request.method} {request.url.path}")
        if (fault := self.fault(request)) is not None:
            return fault
        if request.headers.get("X-API-KEY") != API_KEY:
            return _error(401, "Invalid API key")
        id, action = request.path_params.get("id", ""), request.path_params.get("action", "")
        if not id:
            return await self.create(request) if request.method == "POST" else self.list(request)
        lent = self.lent.get(id)
        if lent is None:
            return _error(404, f"sandbox '{id}' not found")
        match request.method, action:
            case "GET", "":
                return JSONResponse(lent.told())
            case "DELETE", "":
                await self.end(id)
                return Response(status_code=204)
            case "POST", "timeout":
                self.keep(lent, (await request.json())["timeout"])
                return Response(status_code=204)
            case "POST", "connect":
                self.keep(lent, max((await request.json()).get("timeout", 15), lent.ends - time.time()))
                answer = {name: value for name, value in lent.told().items() if name != "metadata"}
                return JSONResponse({**answer, "envdAccessToken": lent.token})
        return _error(400, f"{request.method} {action} is not known")

    def list(self, request: Request) -> Response:
        wanted = {unquote(k): unquote(v) for k, v in parse_qsl(request.query_params.get("metadata", ""))}
        found = [one for one in self.lent.values() if wanted.items() <= one.metadata.items()]
        start, limit = int(request.query_params.get("nextToken", 0)), int(request.query_params.get("limit", 100))
        page = [one.told() for one in found[start : start + limit]]
        headers = {"x-next-token": str(start + limit)} if start + limit < len(found) else {}
        return JSONResponse(page, headers=headers)

    # the daemon of a machine

    def _of(self, request: Request) -> Lent | Response:
        id = request.headers.get("E2b-Sandbox-Id", "")
        self.asked.append(f"{request.method} {request.url.path}")
        if (fault := self.fault(request)) is not None:
            return fault
        lent = self.lent.get(id)
        if lent is None:
            return JSONResponse({"message": "The sandbox was not found", "sandboxId": id, "code": 502}, 502)
        if request.headers.get("X-Access-Token") != lent.token and request.url.path != "/health":
            return _error(401, "unauthenticated")
        return lent

    async def health(self, request: Request) -> Response:
        lent = self._of(request)
        return lent if isinstance(lent, Response) else Response(status_code=204)

    async def upload(self, request: Request) -> Response:
        lent = self._of(request)
        if isinstance(lent, Response):
            return lent
        path = request.query_params["path"]
        script = 'mkdir -p "$(dirname "$0")" && cat > "$0"'
        process = await asyncio.create_subprocess_exec(
            *lent.machine.entered("/bin/sh", "-c", script, path), stdin=asyncio.subprocess.PIPE
        )
        assert process.stdin is not None
        async for piece in request.stream():
            process.stdin.write(piece)
            await process.stdin.drain()
        process.stdin.close()
        if await process.wait():
            return _error(500, f"{path} could not be written")
        return JSONResponse([{"name": path.rpartition("/")[2], "type": "file", "path": path}])

    async def start(self, request: Request) -> Response:
        lent = self._of(request)
        if isinstance(lent, Response):
            return lent
        order = json.loads((await request.body())[5:])
        process, given = order["process"], order.get("stdin", False)
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
        running = await asyncio.create_subprocess_exec(
            *lent.machine.entered("env", "-C", process.get("cwd") or "/", process["cmd"], *process.get("args", [])),
            stdin=asyncio.subprocess.PIPE if given else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**environment, **process.get("envs", {})},
            start_new_session=True,
        )
        self.numbers += 1
        command = lent.commands[self.numbers] = Command(self.numbers, running)
        pumps = [asyncio.create_task(_pump(command, name)) for name in ("stdout", "stderr")]
        command.pumps = [asyncio.create_task(_end(lent, command, pumps))]
        return StreamingResponse(_frames(command), media_type="application/connect+json")

    async def process(self, request: Request) -> Response:
        """The calls about a command."""
        lent = self._of(request)
        if isinstance(lent, Response):
            return lent
        order, call = await request.json(), request.path_params["call"]
        if call == "List":
            return JSONResponse({"processes": [{"pid": number, "config": {}} for number in lent.commands]})
        command = lent.commands.get(int(order["process"].get("pid", 0)))
        if command is None:
            return JSONResponse({"code": "not_found", "message": "process not found"}, 404)
        if call == "SendInput":
            assert command.process.stdin is not None
            with suppress(OSError):
                command.process.stdin.write(base64.b64decode(order["input"]["stdin"]))
                await command.process.stdin.drain()
        elif call == "CloseStdin":
            assert command.process.stdin is not None
            command.process.stdin.close()
        elif call == "SendSignal":
            with suppress(ProcessLookupError):
                os.killpg(command.process.pid, signal.SIGKILL)
        else:
            return JSONResponse({"code": "unimplemented", "message": call}, 501)
        return JSONResponse({})

    # for tests

    async def test(self, request: Request) -> Response:
        if request.method == "POST":
            self.faults = await request.json()
            self.asked.clear()
        told = {id: {"metadata": one.metadata, "ends": one.ends, "order": one.order} for id, one in self.lent.items()}
        return JSONResponse({"machines": told, "asked": self.asked, "full": len(self.ahead) == _AHEAD})

    async def close(self) -> None:
        self.closing = True
        if self.filling is not None:
            await self.filling
        for machine in self.ahead:
            await machine.kill()
        for id in list(self.lent):
            await self.end(id)


async def _pump(command: Command, name: str) -> None:
    stream = getattr(command.process, name)
    while data := await stream.read(32 * 1024):
        await command.tell({"data": {name: base64.b64encode(data).decode()}})


async def _end(lent: Lent, command: Command, pumps: list[asyncio.Task[None]]) -> None:
    await asyncio.gather(*pumps)
    code = await command.process.wait()
    lent.commands.pop(command.number, None)
    status = f"exit status {code}" if code >= 0 else "signal: killed"
    await command.tell({"end": {"exitCode": code, "exited": code >= 0, "status": status}})


async def _frames(command: Command) -> AsyncIterator[bytes]:
    try:
        yield _frame({"start": {"pid": command.number}})
        while True:
            event = await command.events.get()
            yield _frame(event)
            if "end" in event:
                break
        yield struct.pack(">BI", 2, 2) + b"{}"
    finally:
        command.read = False
        while not command.events.empty():
            command.events.get_nowait()


def _frame(event: Mapping[str, Any]) -> bytes:
    data = json.dumps({"event": event}).encode()
    return struct.pack(">BI", 0, len(data)) + data


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"code": status, "message": message}, status, headers=headers)


async def _machine(template: str) -> Machine:
    """Returns a new machine, in which the template's start command is at work."""
    baked = sys.argv[2] if template in ("cold", *_AFTER) else ""
    local = os.path.realpath(sys.argv[3]) if template == "local" else ""
    machine = Machine(f"i{secrets.token_hex(9)}", baked, str(NODE) if template == "node" else "", local)
    await machine.start()
    if template in _AFTER:
        await machine.begin(_START, _READY, _AFTER[template])
    return machine


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def application() -> Starlette:
    here = StandIn()

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        yield
        await here.close()

    routes = [
        Route("/test", here.test, methods=["GET", "POST"]),
        Route("/health", here.health),
        Route("/files", here.upload, methods=["POST"]),
        Route("/process.Process/Start", here.start, methods=["POST"]),
        Route("/process.Process/{call}", here.process, methods=["POST"]),
        *(
            Route(f"{root}/sandboxes{rest}", here.lifecycle, methods=["GET", "POST", "DELETE"])
            for root in ("", "/v2")
            for rest in ("", "/{id}", "/{id}/{action}")
        ),
    ]
    return Starlette(routes=routes, lifespan=life)


if __name__ == "__main__":
    uvicorn.run(
        application(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", timeout_graceful_shutdown=1
    )
