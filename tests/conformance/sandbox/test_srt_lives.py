"""Sandboxes of srt when a server or srt itself is killed, and their run directories."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillyard.domain.errors import InvalidInput, SandboxGone
from skillyard.domain.sandbox.spec import Argv, Owner, SandboxSpec, Stream
from skillyard.domain.work.record import Outcome
from skillyard.sandbox.srt import run
from skillyard.testing.sandbox_suite import Ground
from skillyard.testing.sandbox_suite.ground import contents, pieces
from tests.agents import gone
from tests.conformance.sandbox import srt_ground

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(srt_ground.absent()), reason=srt_ground.absent()),
]

ROOT = Path(__file__).parents[3]
SERVER = """
import asyncio, os, signal, sys
from pathlib import Path
from skillyard.domain.sandbox.spec import Argv, Owner, Stream
from skillyard.sandbox.srt import run
from skillyard.testing.sandbox_suite.ground import Ground
from tests.conformance.sandbox import srt_ground

async def main(base: Path) -> None:
    run.LEASE_S = 2.0
    backend = srt_ground.backend(base)
    for owner in Owner:
        sandbox = await backend.create(await Ground(backend, base).spec(owner=owner), owner.value)
        program = "import sys; print('begun', flush=True); print(sys.stdin.readline(), end='')"
        process = await sandbox.start(Argv(("python3", "-I", "-c", program), stdin=True), id="one")
        await anext(process.output(Stream.STDOUT))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(Path(sys.argv[1])))
"""
WAIT = Argv(("python3", "-I", "-c", "import time; print('ready', flush=True); time.sleep(600)"))


def below(pid: int) -> Iterator[tuple[int, bytes]]:
    """Yields each descendant of a process with its command line."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            yield child, Path(f"/proc/{child}/cmdline").read_bytes()
            yield from below(child)


@pytest.mark.ordinary
async def test_a_server_that_is_killed_loses_no_task_and_leaves_no_run(tmp_path: Path) -> None:
    base = tmp_path / "srt"
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, str(base), cwd=ROOT)
    async with asyncio.timeout(120):
        assert await killed.wait() == -signal.SIGKILL
    backend = srt_ground.backend(base)
    held = {one.key: one for one in await backend.survey()}
    assert {key: one.owner for key, one in held.items()} == {owner.value: owner for owner in Owner}
    process = await (await backend.attach(held["task"].handle)).process("one")
    await process.send(b"went on\n")
    assert b"".join([data async for data in process.output(Stream.STDOUT)]) == b"begun\nwent on\n"
    assert (await process.wait()).code == 0
    await gone(run.states(base)[held["run"].handle]["pid"])
    with pytest.raises(SandboxGone):
        await backend.attach(held["run"].handle)
    for one in held.values():
        await backend.destroy(one.handle)
    await backend.close()
    assert list(base.glob("srt-*")) == []


@pytest.mark.parametrize("victim", [b"--settings", b"--die-with-parent", b"agent"])
async def test_killing_a_part_of_srt_ends_all_of_it_and_its_runs_are_lost(tmp_path: Path, victim: bytes) -> None:
    backend = srt_ground.backend(tmp_path / "srt")
    sandbox = await backend.create(await Ground(backend, tmp_path).spec(), "key")
    process = await sandbox.start(WAIT, id="one")
    assert await anext(process.output(Stream.STDOUT)) == b"ready\n"
    first = run.states(tmp_path / "srt")[sandbox.handle]["pid"]
    tree = [(first, Path(f"/proc/{first}/cmdline").read_bytes()), *below(first)]
    os.kill(next(pid for pid, words in tree if victim in words.split(b"\0")), signal.SIGKILL)
    async with asyncio.timeout(60):
        assert (await process.wait()).outcome is Outcome.LOST
    await gone(first)
    assert [one.handle for one in await backend.survey()] == [sandbox.handle]
    await backend.destroy(sandbox.handle)
    assert await backend.survey() == []
    assert list((tmp_path / "srt").glob("srt-*")) == []


async def test_a_server_that_dies_before_srt_has_started_leaves_a_directory_that_is_destroyed(tmp_path: Path) -> None:
    base, backend = tmp_path / "srt", srt_ground.backend(tmp_path / "srt")
    run.claim(base)
    state = {"key": "k", "owner": "task", "enforced": {}, "began": 0.0, "timeout_ms": 1, "secret": "00" * 32}
    run.make(base / "srt-0000", SandboxSpec(), {}, {**state, "pid": 0, "started": run.NOT_STARTED, "uid": None})
    assert [one.handle for one in await backend.survey()] == ["srt-0000"]
    await backend.destroy("srt-0000")
    assert list(base.iterdir()) == []


@pytest.mark.parametrize("handle", ["../kept", "srt-../../kept", "srt-x/../../kept", "kept", ""])
async def test_a_handle_leads_nowhere_else(tmp_path: Path, handle: str) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "srt" / "kept").mkdir(parents=True)
    await srt_ground.backend(tmp_path / "srt").destroy(handle)
    assert (tmp_path / "kept").is_dir()
    assert (tmp_path / "srt" / "kept").is_dir()


async def test_a_run_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "open"
    root.mkdir(mode=0o755)
    root.chmod(0o755)
    probe = await srt_ground.backend(tmp_path / "srt", local_root=root).probe()
    assert not probe.ready
    assert "srt.local_root" in probe.facts["why"]


async def test_both_roots_are_honoured_and_a_file_of_settings_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "srt.json"
    file.write_text(
        '{"network": {"allowedDomains": [], "deniedDomains": []}, "filesystem": {"denyRead": ["/etc/ssl"], '
        '"allowWrite": ["/workspace"], "denyWrite": []}}'
    )
    roots = {"local_root": tmp_path / "runs", "cache_root": tmp_path / "cache"}
    backend = srt_ground.backend(tmp_path / "srt", settings_mode="file", settings_path=file, **roots)
    ground = Ground(backend, tmp_path)
    async with ground.sandbox() as sandbox:
        assert (tmp_path / "runs" / sandbox.handle / "state.json").is_file()
        assert await sandbox.write("/workspace/a", pieces(b"kept")) == 4
        assert await contents(sandbox, "/workspace/a") == b"kept"
        process = await sandbox.start(Argv(("bash", "-c", "ls /etc/ssl; ls /run/places")), id="look")
        assert b"".join([data async for data in process.output(Stream.STDOUT)]) == b""
    assert list((tmp_path / "runs").iterdir()) == []
    assert not (tmp_path / "srt").exists()
    file.write_text(file.read_text().replace('"/workspace"', '"/usr"'))
    with pytest.raises(InvalidInput, match="allowWrite"):
        await ground.run(WAIT)
    assert list((tmp_path / "runs").iterdir()) == []
    await backend.close()


async def test_a_changed_file_of_settings_is_told_by_the_probe(tmp_path: Path) -> None:
    """Sandboxes of sessions are made anew then: what they were made of is another revision."""
    file = tmp_path / "srt.json"
    told = []
    for denied in ([], ["/etc/ssl"], []):
        files = {"denyRead": denied, "allowWrite": [], "denyWrite": []}
        file.write_text(json.dumps({"network": {"allowedDomains": [], "deniedDomains": []}, "filesystem": files}))
        backend = srt_ground.backend(tmp_path / "srt", settings_mode="file", settings_path=file)
        probe = await backend.probe()
        assert probe.ready, probe.facts
        told.append(probe.facts)
    assert told[0] == told[2] != told[1]
    assert not await backend.changed()
    file.write_text(file.read_text().replace('"denyRead": []', '"denyRead": ["/etc/ssl"]'))
    assert await backend.changed()
    assert (await backend.probe()).facts == told[1]
    assert not await backend.changed()
    file.write_text("{")
    assert not await backend.changed(), "each sandbox is refused"
    await backend.close()


async def test_another_version_is_refused_by_name(tmp_path: Path) -> None:
    package = tmp_path / "node_modules" / "@anthropic-ai" / "sandbox-runtime"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"name": "@anthropic-ai/sandbox-runtime", "version": "0.0.12"}')
    (package / "srt").write_text("#!/bin/sh\n")
    (package / "srt").chmod(0o755)
    probe = await srt_ground.backend(tmp_path / "srt", command=str(package / "srt")).probe()
    assert not probe.ready
    assert "srt '0.0.12' is not one that is taken" in probe.facts["why"]
