"""Real processes: stdio with a runtime of its own, a server's ``/mcp``, and stdio beside that server."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from skillyard.client import Client as Skillyard
from tests.faces.mcp.support import CODE

pytestmark = pytest.mark.anyio
BOUND_S = 60
LONG = {"language": "python", "code": "import time\nprint('here', flush=True)\ntime.sleep(600)"}
REVISIONS = ("auto", "legacy")


def environ(data_dir: Path) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SKILLYARD_")}
    return {**inherited, "SKILLYARD_DATA_DIR": str(data_dir)}


@dataclass
class Served:
    url: str
    data_dir: Path
    process: subprocess.Popen[bytes]

    @property
    def token(self) -> str:
        return (self.data_dir / "token").read_text().strip()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served")) as server:
        yield server
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(BOUND_S) == 0


@contextmanager
def serving(place: Path, *args: str) -> Iterator[Served]:
    data_dir = place / "data"
    command = [sys.executable, "-m", "skillyard", "serve", "--port", "0", *args]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environ(data_dir), stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        try:
            with process.stdout as out:
                said = out.readline() if select.select([out], [], [], BOUND_S)[0] else b""
            assert b"ready at http" in said, (place / "log").read_text()
            yield Served(said.decode().split()[-1], data_dir, process)
        finally:
            process.kill()
            process.wait(BOUND_S)


@asynccontextmanager
async def over_http(server: Served, mode: Any = "auto") -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {server.token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=BOUND_S, trust_env=False) as http,
        Client(streamable_http_client(f"{server.url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


@asynccontextmanager
async def over_stdio(data_dir: Path, *args: str, mode: Any = "auto") -> AsyncIterator[Client]:
    command = ["-m", "skillyard", "mcp", *args]
    process = StdioServerParameters(command=sys.executable, args=command, env=environ(data_dir))
    async with Client(stdio_client(process), mode=mode) as client:
        yield client


async def use(client: Client) -> None:
    """What every client does, whichever way."""
    assert "run_code" in {tool.name for tool in (await client.list_tools()).tools}
    code = {**CODE, "code": "import os\nos.write(1, b'to stdout')\ndef main(args): return {'double': args['n'] * 2}"}
    result = await client.call_tool("run_code", {**code, "args": {"n": 21}})
    assert not result.is_error, result
    assert result.structured_content["output"] == {"double": 42}
    failed = await client.call_tool("run_code", {**CODE, "code": "1/0"})
    assert failed.is_error
    assert failed.structured_content["error"]["type"] == "ZeroDivisionError"


async def cancelled(client: Client) -> None:
    """Cancels a call as soon as its code prints."""
    printed = anyio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        if message == "here":
            printed.set()

    with anyio.fail_after(BOUND_S):
        async with anyio.create_task_group() as calls:

            async def call() -> None:
                await client.call_tool("run_code", LONG, progress_callback=hear)

            calls.start_soon(call)
            await printed.wait()
            calls.cancel_scope.cancel()


async def ended(server: Served) -> dict[str, Any]:
    """Returns the newest run of the owner, once it has ended."""
    async with Skillyard(server.url, server.token) as skillyard:
        run_id = (await skillyard.call("runs.list", {"limit": 1}))["runs"][0]["run_id"]
        told = await skillyard.call("runs.wait", {"run_id": run_id, "wait_ms": 20_000})
        assert told["ended"]
        run: dict[str, Any] = told["run"]
        return run


@pytest.mark.parametrize("mode", REVISIONS)
async def test_http_serves_all_revisions(served: Served, mode: Any) -> None:
    async with over_http(served, mode) as client:
        await use(client)


@pytest.mark.parametrize("mode", REVISIONS)
async def test_stdio_passes_on_to_a_server(served: Served, mode: Any) -> None:
    async with over_stdio(served.data_dir, mode=mode) as client:
        await use(client)


@pytest.mark.parametrize("mode", REVISIONS)
async def test_stdio_works_in_its_own_process(tmp_path: Path, mode: Any) -> None:
    async with over_stdio(tmp_path / "data", mode=mode) as client:
        await use(client)


@pytest.mark.parametrize("mode", REVISIONS)
async def test_a_cancelled_call_ends_its_tree_over_http(served: Served, mode: Any) -> None:
    async with over_http(served, mode) as client:
        await cancelled(client)
        assert (await ended(served))["outcome"] == "cancelled"


@pytest.mark.parametrize("mode", REVISIONS)
async def test_a_cancelled_call_ends_its_tree_over_stdio(served: Served, mode: Any) -> None:
    async with over_stdio(served.data_dir, mode=mode) as client:
        await cancelled(client)
        assert (await ended(served))["outcome"] == "cancelled"


def handshake(revision: str = "2025-06-18") -> bytes:
    about = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    first = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}
    return json.dumps(first).encode() + b'\n{"jsonrpc":"2.0","method":"notifications/initialized"}\n'


def tool_call(id: int, params: dict[str, Any]) -> bytes:
    asked = {"name": "run_code", "arguments": params, "_meta": {"progressToken": id}}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": asked}).encode() + b"\n"


def spoken(data_dir: Path, *args: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "skillyard", "mcp", *args]
    return subprocess.Popen(
        command, env=environ(data_dir), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def line_with(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    """Returns the first line of a client's input with the text; each line is one message of the protocol."""
    assert process.stdout is not None
    for line in iter(process.stdout.readline, b""):
        assert json.loads(line)["jsonrpc"] == "2.0"
        if text in line:
            return line
    raise AssertionError(f"it ended without {text!r}")


def at_work(data_dir: Path, *args: str) -> subprocess.Popen[bytes]:
    """Returns a stdio server with a run whose code has begun."""
    process = spoken(data_dir, *args)
    assert process.stdin is not None
    process.stdin.write(handshake() + tool_call(2, LONG))
    process.stdin.flush()
    line_with(process, b'"here"')
    return process


@pytest.mark.timeout(180)
def test_a_client_that_closes_its_end_leaves_nothing(tmp_path: Path) -> None:
    process = at_work(tmp_path / "data")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    assert process.wait(BOUND_S) == 0
    rest = [json.loads(line) for line in process.stdout.read().splitlines()]
    process.stdout.close()
    assert [message["id"] for message in rest if "id" in message] == [2]
    assert "error" in rest[-1]
    assert keepers(tmp_path / "data") == []


async def test_a_client_that_is_killed_ends_its_run(served: Served) -> None:
    process = at_work(served.data_dir)
    assert process.stdin is not None
    assert process.stdout is not None
    process.kill()
    process.wait(BOUND_S)
    process.stdin.close()
    process.stdout.close()
    assert (await ended(served))["outcome"] == "cancelled"


def keepers(data_dir: Path) -> list[str]:
    """Returns the command lines of processes that name a data directory."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                line = (place / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(data_dir) in line:
                found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


@pytest.mark.timeout(180)
def test_a_server_that_is_killed_leaves_its_calls_an_error(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        process = at_work(server.data_dir)
        assert process.stdin is not None
        assert process.stdout is not None
        server.process.kill()
        answer = json.loads(line_with(process, b'"id":2'))
        assert answer["error"]["message"]
        process.stdin.close()
        assert process.wait(BOUND_S) == 0
        process.stdout.close()
