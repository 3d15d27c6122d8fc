"""kill -9 while an idle session leaves the sandbox of an earlier configuration: its files stay, and nothing else."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from skillyard import Runtime
from tests.crash import moves_dies_at
from tests.crash.leftovers import Footprint, gone, idle
from tests.crash.server import SMALL, Server
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary, pytest.mark.timeout(300)]
ROOT = Path(moves_dies_at.__file__).parents[2]
SKILL = "skills.protocol.guide"
SHORT = [("create", "while"), ("stands", "before"), ("stands", "after"), ("destroy", "before")]
STEPS = [
    *SHORT,
    ("makes", "before"),
    ("makes", "after"),
    ("create", "before"),
    ("create", "after"),
    ("destroy", "while"),
    ("destroy", "after"),
]


def _case(step: tuple[str, str]) -> Any:
    return pytest.param(*step, id="-".join(step), marks=() if step in SHORT else pytest.mark.long)


@pytest.mark.parametrize(("step", "when"), [_case(step) for step in STEPS])
async def test_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, when: str) -> None:
    data_dir = tmp_path / "data"
    footprint = Footprint(data_dir)
    monkeypatch.setenv("SKILLYARD_NATIVE__READY", "0")
    async with Runtime(data_dir) as runtime:
        made = await _cat(runtime, "echo kept > ../kept.txt")
        assert made["status"] == "succeeded", made
        [before] = (await runtime.call("skills.sessions"))["sessions"]
    monkeypatch.setenv("SKILLYARD_NATIVE__RETIRE_RUNS", "777")
    await _dies(data_dir, step, when)
    async with Runtime(data_dir) as runtime:

        async def told() -> dict[str, Any]:
            [session] = (await runtime.call("skills.sessions"))["sessions"]
            return dict(session)

        async with asyncio.timeout(60):
            while (after := await told())["revision"] == before["revision"] or len(await _held(runtime)) > 1:
                await asyncio.sleep(0)
        assert (after["state"], after["created_at"], after["runs"]) == ("ready", before["created_at"], 1)
        assert (await _cat(runtime, "cat ../kept.txt", wait_ms=0))["stdout"] == "kept\n"
        await runtime.call("skills.end_session", {"session_id": "a"})
        assert await _held(runtime) == []
        await asyncio.to_thread(idle, footprint)
    gone(footprint)


async def _cat(runtime: Runtime, command: str, **more: Any) -> dict[str, Any]:
    asked = {"skill_name": SKILL, "command": command, "session_id": "a", "limits": SMALL, **more}
    return dict(await runtime.call("skills.run_cmd", asked))


async def _held(runtime: Runtime) -> list[str]:
    (backend,) = (each for each in runtime.app.backends if each.name == "native")
    return [each.key for each in await backend.survey()]


async def _dies(data_dir: Path, *step: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", moves_dies_at.__name__, str(data_dir), *step, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(90):
        _, said = await process.communicate()
    assert process.returncode == -signal.SIGKILL, said.decode()[-2000:]


def test_calls_go_on_while_a_new_server_moves_sessions(tmp_path: Path) -> None:
    """Some of them come while theirs is moved, and none is refused; one that works meanwhile is not touched."""
    data_dir = tmp_path / "data"
    footprint = Footprint(data_dir)
    aliases = [f"s{number}" for number in range(6)]
    with Server(data_dir) as first, first.client() as client:
        for alias in aliases:
            client.run_cmd(SKILL, f"echo {alias} > ../kept.txt", session_id=alias, limits=SMALL)
        task = client.run_cmd_async(SKILL, "sleep 4; cat ../kept.txt", session_id="s0", limits=SMALL)["task_id"]
        until(lambda: client.task_status(task_id=task)["status"] == "running", 60, "it works")
        before = client.sessions()["sessions"][0]["revision"]
        first.kill()
    with Server(data_dir, SKILLYARD_NATIVE__RETIRE_RUNS="777") as second, second.client() as client:
        for alias in reversed(aliases[1:]):
            told = client.run_cmd(SKILL, "cat ../kept.txt", session_id=alias, limits=SMALL, wait_ms=0)
            assert told["stdout"] == f"{alias}\n", told
        ended = client.task_watch(task, timeout_sec=60)
        assert (ended["status"], ended["stdout_tail"]) == ("succeeded", "s0\n"), ended

        def all_moved() -> bool:
            return before not in {row["revision"] for row in client.sessions()["sessions"]}

        until(all_moved, 30, "the busy one is moved when it is idle")
        assert client.run_cmd(SKILL, "cat ../kept.txt", session_id="s0", limits=SMALL)["stdout"] == "s0\n"
        for alias in aliases:
            client.end_session(alias)
        idle(footprint)
    gone(footprint)
