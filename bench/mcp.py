"""MCP servers behind walls beside bare ones, and fifty calls of tools by one program beside fifty single calls."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from skillyard.bench.subject import WrongResult
from skillyard.bench.turns import in_ms
from skillyard.client.client import Client as Caller
from skillyard.server_process import ServerProcess

BARE, JAILED, SHARED = "bare", "jailed", "shared"
"""A server of tools by itself, in a jail of its own keeper, and in one on a server of skillyard."""
_SIDES = (BARE, JAILED, SHARED)
CALLS = 50
SERVER = r"""
import json, sys
for line in sys.stdin.buffer:
    asked = json.loads(line)
    method, result = asked["method"], {}
    if "id" not in asked:
        continue
    if method == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
        result["serverInfo"] = {"name": "sums", "version": "1"}
    elif method == "tools/list":
        result = {"tools": [{"name": "add", "description": "Adds.", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        total = sum(asked["params"]["arguments"]["numbers"])
        result = {"content": [{"type": "text", "text": str(total)}], "structuredContent": {"total": total}}
    told = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result})
    sys.stdout.buffer.write(told.encode() + b"\n")
    sys.stdout.buffer.flush()
"""
CODE = f"""
from tools.sums import add

def main(args):
    total = 0
    for number in range({CALLS}):
        total = add(numbers=[total, number])["total"]
    return {{"total": total}}
"""
PING = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":{"numbers":[1,2]}}}\n'
TOTAL = sum(range(CALLS))


@dataclass(slots=True)
class Found:
    """Seconds by what was measured and how; ``said`` are bytes of requests and answers, as a model reads them."""

    starts: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in _SIDES})
    trips: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in _SIDES})
    calls: dict[str, list[float]] = field(default_factory=dict)
    said: dict[str, int] = field(default_factory=dict)

    def rows(self) -> Iterator[tuple[str, float]]:
        """Yields titles and numbers."""
        middle = {name: statistics.median(times) for name, times in self.trips.items()}
        yield "a round trip: the walls add, ms", (middle[JAILED] - middle[BARE]) * 1000
        yield "a round trip on a server: they add, ms", (middle[SHARED] - middle[BARE]) * 1000
        yield "start-up until the first answer: of bare", _ratio(self.starts[JAILED], self.starts[BARE])
        yield "start-up on a server: of bare", _ratio(self.starts[SHARED], self.starts[BARE])
        for way in ("/rpc", "/mcp"):
            one, many = f"one program over {way}", f"{CALLS} calls over {way}"
            yield f"{one}: of the time of {many}", _ratio(self.calls[one], self.calls[many])
            yield f"{one}: of the bytes of {many}", self.said[one] / self.said[many]

    def as_dict(self) -> dict[str, Any]:
        times = {"starts": self.starts, "trips": self.trips, "calls": self.calls}
        told = {name: {each: in_ms(all_) for each, all_ in found.items()} for name, found in times.items()}
        return {**{name: round(value, 3) for name, value in self.rows()}, "times": told, "bytes": self.said}


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(ours) / statistics.median(theirs)


def measure(home: Path, *, starts: int, trips: int, rounds: int) -> Found:
    """Measures all, in turns. Raises the errors of a server and of its start, WrongResult, OSError."""
    home.mkdir(parents=True, exist_ok=True)
    found = Found()
    with ServerProcess(home / "jails"):
        _jails(home, found, starts, trips)
    asyncio.run(_tools(home, found, rounds))
    return found


def _jails(home: Path, found: Found, starts: int, trips: int) -> None:
    program = ["python3", "-c", SERVER]
    jail = [sys.executable, "-m", "skillyard", "jail"]
    commands = {BARE: program, JAILED: [*jail, "--alone", "--", *program], SHARED: [*jail, "--", *program]}
    env = {**os.environ, "SKILLYARD_DATA_DIR": str(home / "jails")}
    for turn in range(starts):
        running = {}
        try:
            for side, command in commands.items():
                began = time.perf_counter()
                running[side] = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                _trip(running[side])
                found.starts[side].append(time.perf_counter() - began)
            for number in range(trips if turn == starts - 1 else 0):
                for side, process in running.items():
                    took = _trip(process)
                    if number:
                        found.trips[side].append(took)
        finally:
            for process in running.values():
                process.communicate(timeout=60)


def _trip(process: subprocess.Popen[bytes]) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    began = time.perf_counter()
    process.stdin.write(PING)
    process.stdin.flush()
    answer = process.stdout.readline()
    took = time.perf_counter() - began
    if b'"total": 3' not in answer:
        raise WrongResult(f"the server answered {answer[:200]!r}")
    return took


async def _tools(home: Path, found: Found, rounds: int) -> None:
    source = home / "server"
    source.mkdir(mode=0o755, exist_ok=True)
    home.chmod(0o755)
    (source / "server.py").write_text(SERVER)
    section = {"command": ["python3", "server.py"], "source": str(source), "approve_first": True}
    settings = {
        "SKILLYARD_MCP__SERVERS": json.dumps({"sums": section}),
        "SKILLYARD_MCP__CODE_TOOLS": '["sums__*"]',
    }
    with ServerProcess(home / "data", settings=settings) as server:
        token = (server.data_dir / "token").read_text().strip()
        async with Caller(data_dir=server.data_dir) as client, _mcp(server.url, token) as agent:
            await client.call("tools.refresh", {"server": "sums"})
            ways = _ways(client, agent, found)
            for turn in range(rounds + 1):
                for name, way in ways.items():
                    found.said[name] = 0
                    began = time.perf_counter()
                    if await way() != TOTAL:
                        raise WrongResult(f"{name}: the sum is wrong")
                    if turn:
                        found.calls.setdefault(name, []).append(time.perf_counter() - began)


def _mcp(url: str, token: str) -> Client:
    import httpx2

    http = httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60)
    return Client(streamable_http_client(f"{url}/mcp", http_client=http))


def _ways(client: Caller, agent: Client, found: Found) -> dict[str, Callable[[], Awaitable[int]]]:
    async def rpc(name: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = await client.call(method, params)
        found.said[name] += len(json.dumps(params)) + len(json.dumps(told))
        return told

    async def mcp(name: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        result = await agent.call_tool(tool, arguments)
        found.said[name] += len(json.dumps(arguments)) + len(result.model_dump_json(by_alias=True))
        return result.structured_content or {}

    async def single_rpc() -> int:
        total, name = 0, f"{CALLS} calls over /rpc"
        for number in range(CALLS):
            arguments = {"numbers": [total, number]}
            told = await rpc(name, "tools.call", {"server": "sums", "tool": "add", "arguments": arguments})
            total = told["structured"]["total"]
        return total

    async def single_mcp() -> int:
        total, name = 0, f"{CALLS} calls over /mcp"
        for number in range(CALLS):
            total = (await mcp(name, "sums__add", {"numbers": [total, number]}))["total"]
        return total

    code = {"language": "python", "code": CODE, "tools": ["sums__add"]}

    async def whole_rpc() -> int:
        run = await rpc("one program over /rpc", "run_code", {**code, "detail": "brief"})
        return int(run.get("output", {}).get("total", -1))

    async def whole_mcp() -> int:
        run = await mcp("one program over /mcp", "run_code", code)
        return int(run.get("output", {}).get("total", -1))

    return {
        f"{CALLS} calls over /rpc": single_rpc,
        "one program over /rpc": whole_rpc,
        f"{CALLS} calls over /mcp": single_mcp,
        "one program over /mcp": whole_mcp,
    }


@click.command("mcp")
@click.option("--quick", is_flag=True, help="A few turns: a sign of life.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def mcp(*, quick: bool, as_json: bool) -> None:
    """Measure MCP servers in jails beside bare ones, and programs that call tools beside single calls."""
    with tempfile.TemporaryDirectory() as home:
        found = measure(Path(home), starts=2 if quick else 7, trips=50 if quick else 1000, rounds=1 if quick else 9)
    if as_json:
        click.echo(json.dumps(found.as_dict()))
        return
    for title, value in found.rows():
        click.echo(f"{title:72} {value:8.2f}")
