"""Code in sandboxes that calls tools: one program in the place of fifty calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.errors import InvalidInput
from skillyard.domain.principal import LOCAL, Principal
from tests.faces.gateway.conftest import SERVER, Yard, yard_of

pytestmark = pytest.mark.anyio

FIFTY = """
from tools.toy import add

def main(args):
    total = 0
    for number in range(50):
        total = add(numbers=[total, number])["total"]
    return {"total": total}
"""
RAW = """
import json, socket

def ask(request):
    with socket.create_connection(("127.0.0.1", 3129)) as line:
        line.sendall(len(request).to_bytes(4, "big") + request)
        return json.loads(line.recv(65536)[4:] or b'{"ended": true}')

def main(args):
    wrong = {"server": args.get("server", "toy"), "tool": args["tool"], "arguments": {}}
    return {
        "call": ask(json.dumps(wrong).encode()),
        "method": ask(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'),
        "http": ask(b"POST /mcp HTTP/1.1"),
    }
"""


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    tmp_path.chmod(0o755)
    profiles = {"reader": {"allowed_tools": ["run_code", "tools.*", "toy__sleep"]}}
    mcp = {"servers": {"toy": SERVER}, "code_tools": ["toy__add", "toy__s*", "toy__fail"], "code_calls": 60}
    async with yard_of(tmp_path / "data", mcp=mcp, profiles=profiles) as yard:
        await yard.call("tools.refresh", server="toy")
        yield yard


async def ran(yard: Yard, code: str, tools: list[str], principal: Principal = LOCAL, **more: Any) -> dict[str, Any]:
    return await yard.call("run_code", principal, language="python", code=code, tools=tools, **more)


async def test_one_program_makes_fifty_calls_and_each_is_a_run(yard: Yard) -> None:
    run = await ran(yard, FIFTY, ["toy__add"])
    assert run["output"] == {"total": 1225}, run
    calls = (await yard.call("runs.list", limit=100, labels={"mcp.run": run["run_id"]}))["runs"]
    assert [call["status"] for call in calls] == ["completed"] * 50
    told = (await yard.call("runs.show", run_id=run["run_id"]))["run"]["network"]
    (line,) = told["connections"]
    assert (line["via"], line["allowed"], line["layer"]) == ("tools", True, "tools")
    assert told["layers"] == []


async def test_the_way_of_tools_leads_nowhere_else(yard: Yard) -> None:
    code = """
import socket

def main(args):
    said = {}
    for name, port in (("10.0.0.1", 443), ("127.0.0.1", 3130), ("example.com", 443)):
        try:
            socket.create_connection((name, port), 2)
            said[name] = "open"
        except OSError as error:
            said[name] = "closed"
    return said
"""
    assert set((await ran(yard, code, ["toy__add"]))["output"].values()) == {"closed"}


async def test_tools_that_were_not_granted_are_refused_by_name(yard: Yard) -> None:
    said = (await ran(yard, RAW, ["toy__add"], args={"tool": "crash"}))["output"]
    assert said["call"]["error"]["message"] == "the run may not call 'crash' of 'toy'; ask for it with tools"
    assert "members server, tool and arguments alone" in said["method"]["error"]["message"]
    assert "not valid" in said["http"]["error"]["message"]
    other = (await ran(yard, RAW, ["toy__add"], args={"server": "other", "tool": "add"}))["output"]
    assert other["call"]["error"]["type"] == "PolicyRefused"
    run = await ran(yard, "from tools.toy import crash", ["toy__add"])
    assert run["error"]["type"] == "ImportError"


@pytest.mark.parametrize("asked", [["toy__crash"], ["toy__add", "other__*"], ["*x*"]])
async def test_what_policy_does_not_give_fails_the_run(yard: Yard, asked: list[str]) -> None:
    run = await ran(yard, FIFTY, asked)
    assert (run["status"], run["error"]["type"]) == ("failed", "PolicyRefused")


async def test_without_asking_there_is_no_way(yard: Yard) -> None:
    run = await yard.call("run_code", language="python", code=FIFTY)
    assert run["error"]["type"] == "ModuleNotFoundError"
    run = await yard.call("run_code", language="python", code=RAW, args={"tool": "add"})
    assert run["error"]["type"] == "ConnectionRefusedError"


async def test_a_profile_bounds_code_too(yard: Yard) -> None:
    reader = yard.runtime.bound(Principal("eve", profile="reader"))
    run = await ran(yard, FIFTY, ["toy__add"], reader)
    assert run["error"]["type"] == "PolicyRefused"


async def test_a_revoked_tool_fails_within_a_run_at_work(yard: Yard) -> None:
    await yard.call("tools.approve", server="toy")
    code = """
from tools import ToolError
from tools.toy import add, sleep

def main(args):
    sleep(seconds=1.5)
    try:
        return {"said": add(numbers=[1])}
    except ToolError as error:
        return {"said": str(error)}
"""
    running = asyncio.ensure_future(ran(yard, code, ["toy__*"]))
    await _calls(yard, 1)
    await yard.call("tools.revoke", server="toy", tool="add")
    assert "held back" in (await running)["output"]["said"]


async def test_the_budget_ends_an_endless_program(yard: Yard) -> None:
    code = FIFTY.replace("range(50)", "range(1000)")
    run = await ran(yard, code, ["toy__add"])
    assert run["error"] == {**run["error"], "type": "ToolError"}
    assert "made its 60 calls" in run["error"]["message"]
    told = (await yard.call("runs.show", run_id=run["run_id"]))["run"]["network"]
    assert any("60 calls" in row["reason"] and not row["allowed"] for row in told["connections"])


async def test_a_failing_tool_is_an_exception(yard: Yard) -> None:
    run = await ran(yard, "from tools.toy import fail\nfail()", ["toy__fail"])
    assert run["error"]["type"] == "ToolError"


async def test_a_run_that_ends_takes_its_calls_with_it(yard: Yard) -> None:
    code = """
import threading, time
from tools.toy import sleep

def main(args):
    threading.Thread(target=sleep, kwargs={"seconds": 3600}, daemon=True).start()
    time.sleep(1)
    return {}
"""
    run = await ran(yard, code, ["toy__sleep"])
    assert run["status"] == "completed", run
    (call,) = (await yard.call("runs.list", labels={"mcp.run": run["run_id"]}))["runs"]
    assert (call["status"], call["outcome"]) == ("failed", "cancelled")


async def test_a_detached_run_cannot_ask(yard: Yard) -> None:
    with pytest.raises(InvalidInput, match="detached"):
        await ran(yard, FIFTY, ["toy__add"], detach=True)


async def _calls(yard: Yard, number: int) -> None:
    async with asyncio.timeout(30):
        while sum(kept.calls for kept in yard.runtime.app.gateway.kept()) < number:
            await asyncio.sleep(0.01)
