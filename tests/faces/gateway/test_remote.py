"""MCP servers behind HTTP: a server of the official SDK on loopback, reached through the gate alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.errors import SkillyardError
from tests.faces.gateway.conftest import Yard, yard_of

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    program = Path(__file__).with_name("remote_server.py")
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


def settings(port: int, **network: Any) -> dict[str, Any]:
    toy = {"url": f"http://mcp.test:{port}/mcp", "approve_first": True, "result_bytes": 1 << 20}
    return {"mcp": {"servers": {"toy": toy}}, "network": {"hosts": {"mcp.test": ["127.0.0.1"]}, **network}}


@pytest.fixture
async def yard(tmp_path: Path, port: int) -> AsyncIterator[Yard]:
    tmp_path.chmod(0o755)
    async with yard_of(tmp_path / "data", **settings(port)) as yard:
        await yard.call("tools.refresh", server="toy")
        yield yard


async def test_a_remote_tool_answers_and_its_connections_are_recorded(yard: Yard, port: int) -> None:
    told = await yard.tool("double", {"number": 21})
    assert (told["status"], told["structured"]) == ("completed", {"doubled": 42})
    record = (await yard.call("runs.show", run_id=told["run_id"]))["run"]
    assert record["isolation"] == ""
    hosts = {(row["host"], row["port"], row["allowed"]) for row in record["network"]["connections"]}
    assert hosts <= {("mcp.test", port, True)}
    assert (await yard.tool("key"))["content"][0]["text"] == "None"


async def test_an_answer_above_the_bound_breaks_it_and_the_next_call_works(yard: Yard) -> None:
    told = await yard.tool("huge", timeout_ms=20_000)
    assert told["status"] == "failed"
    assert told["error"]["type"] in ("ToolServerError", "TimeoutError"), told
    assert (await yard.tool("double", {"number": 1}))["structured"] == {"doubled": 2}


async def test_a_host_that_the_operator_does_not_allow_is_not_reached(tmp_path: Path, port: int) -> None:
    async with yard_of(tmp_path / "data", **settings(port, rules=["api.example.com:443"])) as yard:
        with pytest.raises(SkillyardError, match=r"toy|connection|failed"):
            await yard.call("tools.refresh", server="toy")


async def test_an_address_that_is_closed_stays_closed(tmp_path: Path, port: int) -> None:
    given = settings(port)
    given["mcp"]["servers"]["toy"]["url"] = f"http://127.0.0.1:{port}/mcp"
    async with yard_of(tmp_path / "data", **given) as yard:
        with pytest.raises(SkillyardError):
            await yard.call("tools.refresh", server="toy")
