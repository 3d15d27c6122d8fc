"""skillyard is killed in the middle of a call: nothing is left, and the call has one truthful end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.crash.leftovers import Footprint
from tests.faces.gateway.conftest import SERVER, yard_of

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary]
ROOT = Path(__file__).parents[3]
MARK = "toy_server.py"


def programs(mark: str) -> list[int]:
    """Returns the processes of this host that run a program with a mark of this test."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


async def test_a_killed_skillyard_leaves_nothing_and_a_lost_call(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    mark, home = f"--mark={tmp_path.name}-{id(tmp_path)}", tmp_path / "data"
    toy = {**SERVER, "command": ["python3", MARK, mark]}
    command = [sys.executable, "-m", "tests.faces.gateway.dies_in_a_call", str(home), mark]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        assert len(programs(mark)) == 2  # the runtime and the server in its sandbox
        process.kill()
    async with asyncio.timeout(30):
        while programs(mark):
            await asyncio.sleep(0.05)
    async with yard_of(home, mcp={"servers": {"toy": toy}}) as yard:
        (run,) = (await yard.call("runs.list"))["runs"]
        assert (run["kind"], run["status"], run["outcome"]) == ("tools.call", "failed", "lost")
        assert await yard.held() == []
        assert (await yard.tool("echo", {"text": "again"}))["status"] == "completed"


@pytest.mark.parametrize("rounds", [2, pytest.param(40, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
async def test_a_server_that_is_killed_again_and_again_gives_each_call_one_end(tmp_path: Path, rounds: int) -> None:
    """Callers go away meanwhile, too. Whoever was answered has a completed run, and no other."""
    tmp_path.chmod(0o755)
    mark = f"--mark={tmp_path.name}-{id(tmp_path)}"
    toy = {**SERVER, "command": ["python3", MARK, mark], "shared": True, "calls_each": 16}
    async with yard_of(tmp_path / "data", mcp={"servers": {"toy": toy}}) as yard:
        await yard.call("tools.refresh", server="toy")
        known: set[str] = set()
        for number in range(rounds):
            calls = [asyncio.ensure_future(yard.tool("sleep", {"seconds": 0.05})) for _ in range(8)]
            async with asyncio.timeout(60):
                while not sum(kept.calls for kept in yard.runtime.app.gateway.kept()) and not all(
                    call.done() for call in calls
                ):
                    await asyncio.sleep(0.01)
            calls[number % 8].cancel()
            for pid in programs(mark):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            told = await asyncio.gather(*calls, return_exceptions=True)
            runs = (await yard.call("runs.list", limit=20))["runs"]
            ends = {run["run_id"]: (run["status"], run.get("outcome")) for run in runs if run["run_id"] not in known}
            known |= ends.keys()
            assert len(ends) in (7, 8), "one caller went away, perhaps before its call began"
            for each in told:
                if isinstance(each, asyncio.CancelledError):
                    continue
                assert isinstance(each, dict), each
                status, outcome = ends[each["run_id"]]
                assert status == each["status"]
                assert (status, outcome) in {("completed", "exit"), ("failed", "lost"), ("failed", None)}, each
            assert all(status != "running" for status, _ in ends.values()), ends
            async with asyncio.timeout(60):
                while programs(mark) or await yard.held():
                    await asyncio.sleep(0.05)
            for kept in yard.runtime.app.gateway.kept():
                kept._not_before = 0.0  # what waits between starts is tested elsewhere
        assert (await yard.tool("echo", {"text": "still here"}))["status"] == "completed"


async def test_a_server_whose_gate_is_killed_gets_another_way_out(tmp_path: Path) -> None:
    """It would answer calls and pings for ever, and reach nothing."""
    tmp_path.chmod(0o755)
    mark, home = f"--mark={tmp_path.name}-{id(tmp_path)}", tmp_path / "data"
    toy = {**SERVER, "command": ["python3", MARK, mark], "network": ["192.0.2.1:80"]}
    footprint = Footprint(home)
    async with yard_of(home, mcp={"servers": {"toy": toy}}) as yard:
        await yard.call("tools.refresh", server="toy")
        call = asyncio.ensure_future(yard.tool("silence"))
        async with asyncio.timeout(60):
            while not sum(kept.calls for kept in yard.runtime.app.gateway.kept()):
                await asyncio.sleep(0.01)
        [before] = programs(mark)
        assert footprint.kill_gates()
        told = await asyncio.wait_for(call, 60)
        assert (told["status"], "its way out is lost" in told["error"]["message"]) == ("failed", True), told
        again = await yard.tool("whoami")
        assert again["status"] == "completed", again
        assert before not in programs(mark)
        assert "its way out is lost" in (await yard.call("tools.servers"))["servers"][0]["why"]
        run = (await yard.call("runs.show", run_id=again["run_id"]))["run"]
        assert run["network"]["connections"] == [], "it has a living gate"
