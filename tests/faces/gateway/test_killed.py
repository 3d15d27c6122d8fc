"""skillyard is killed in the middle of a call: nothing is left, and the call has one truthful end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

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
