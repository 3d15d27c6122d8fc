"""MCP servers that are programs: real sandboxes, a real protocol, honest and hostile ones."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.errors import ToolNotFound
from skillyard.domain.principal import Principal
from tests.faces.gateway.conftest import SERVER, TOY, Yard, yard_of

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary]


async def test_a_tool_answers_from_within_the_walls(yard: Yard) -> None:
    told = await yard.tool("echo", {"text": "ü"})
    assert (told["status"], told["content"]) == ("completed", [{"type": "text", "text": "ü"}])
    assert (await yard.tool("add", {"numbers": [1, 2]}))["structured"] == {"total": 3}
    record = (await yard.call("runs.show", run_id=told["run_id"]))["run"]
    assert record["kind"] == "tools.call"
    assert record["guarantees"]["network"]["attestor"] == "kernel"
    assert record["network"] is None
    inside = json.loads((await yard.tool("whoami"))["content"][0]["text"])
    assert set(inside["env"]) <= {"PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "PYTHONUNBUFFERED"}
    assert inside["cwd"] == "/skills/toy"


async def test_fifty_calls_share_one_process(yard: Yard) -> None:
    pids = set()
    for _ in range(50):
        pids.add(json.loads((await yard.tool("whoami"))["content"][0]["text"])["pid"])
    assert len(pids) == 1


@pytest.mark.parametrize(
    ("tool", "outcome", "said"),
    [
        ("crash", "lost", "its program ended with code 7; it said: the last words"),
        ("kill", "lost", "its program was ended by a signal"),
        ("eat", "memory", "it used more than its memory"),
        ("deep", "lost", "nested too deep"),
        ("huge", "lost", "it sent"),
        ("flood", "lost", "notifications and requests in a row"),
    ],
)
async def test_a_hostile_answer_ends_the_call_once_and_the_process(
    yard: Yard, tool: str, outcome: str, said: str
) -> None:
    told = await yard.tool(tool)
    run = (await yard.call("runs.show", run_id=told["run_id"]))["run"]
    if tool == "eat" and run["enforced"]["memory"] != "kernel":  # a limit of each process, which Python is told of
        outcome, said = "lost", "MemoryError"
    assert (told["status"], told["outcome"], told["error"]["type"]) == ("failed", outcome, "ToolServerError")
    assert said in told["error"]["message"]
    again = await yard.tool("echo", {"text": "again"})
    assert again["content"] == [{"type": "text", "text": "again"}]
    assert len(await yard.held()) == 1
    runs = (await yard.call("runs.list"))["runs"]
    assert [run["status"] for run in runs] == ["completed", "failed"]


async def test_all_calls_of_a_process_that_dies_end(yard: Yard) -> None:
    waiting = [asyncio.ensure_future(yard.tool("sleep")) for _ in range(3)]
    await _at_work(yard, 3)
    await yard.call("tools.stop", server="toy")
    told = await asyncio.gather(*waiting)
    assert [each["outcome"] for each in told] == ["lost"] * 3
    assert await yard.held() == []
    assert all(run["status"] == "failed" for run in (await yard.call("runs.list"))["runs"])


async def test_a_tool_that_never_answers_ends_at_its_deadline(yard: Yard) -> None:
    told = await yard.tool("silence", timeout_ms=300)
    assert (told["outcome"], told["error"]["type"]) == ("timeout", "TimeoutError")
    async with asyncio.timeout(30):  # it does not answer a ping either
        while await yard.held():
            await asyncio.sleep(0.05)
    assert (await yard.tool("echo", {"text": "x"}))["status"] == "completed"


async def test_a_changed_description_is_held_back(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    shared = {"servers": {"toy": {**SERVER, "shared": True}}}
    async with yard_of(tmp_path / "data", mcp=shared) as yard:
        await yard.call("tools.refresh", server="toy")
        await _is_held_back(yard)


async def _is_held_back(yard: Yard) -> None:
    assert (await yard.tool("change"))["status"] == "completed"
    told = await yard.tool("echo", {"text": "x"})
    assert told["error"]["type"] == "ToolNotFound"
    assert "held back" in told["error"]["message"]
    with pytest.raises(ToolNotFound, match="in other words"):
        await yard.tool("echo", {"text": "x"})
    (row,) = [row for row in (await yard.call("tools.rows"))["tools"] if row["tool"] == "echo"]
    assert row["state"] == "changed"
    assert "your keys" in row["description"]
    assert row["approved_definition"]["description"] == "Sends the text back."


async def test_principals_share_neither_process_nor_files(yard: Yard) -> None:
    ann, bob = Principal("ann"), Principal("bob")
    await yard.tool("change", principal=ann)
    told = await yard.tool("echo", {"text": "x"}, principal=bob)
    assert told["status"] == "completed"
    assert (await yard.tool("echo", {"text": "x"}, principal=ann))["error"]["type"] == "ToolNotFound"
    pids: list[Any] = [(await yard.tool("whoami", principal=who)).get("content") for who in (ann, bob)]
    assert len(await yard.held()) == 3, pids


async def test_a_caller_that_goes_away_leaves_nothing_at_work(yard: Yard) -> None:
    calling = asyncio.ensure_future(yard.tool("sleep"))
    await _at_work(yard, 1)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    (run,) = (await yard.call("runs.list"))["runs"]
    assert (run["status"], run["outcome"]) == ("failed", "cancelled")


async def _at_work(yard: Yard, number: int) -> None:
    async with asyncio.timeout(30):
        while sum(kept.calls for kept in yard.runtime.app.gateway.kept()) < number:
            await asyncio.sleep(0.01)


async def test_a_socket_of_the_host_is_not_shown(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    source = tmp_path / "server" / "below"
    source.mkdir(parents=True)
    (source.parent / "toy_server.py").write_bytes((TOY / "toy_server.py").read_bytes())
    toy = {**SERVER, "source": str(source.parent)}
    async with yard_of(tmp_path / "data", mcp={"servers": {"toy": toy}}) as yard:
        await yard.call("tools.refresh", server="toy")
        await yard.call("tools.stop", server="toy")
        with socket.socket(socket.AF_UNIX) as host:
            host.bind(str(source / "S"))
            told = await yard.tool("echo", {"text": "x"})
        assert "which leads to a program of this host" in told["error"]["message"]
