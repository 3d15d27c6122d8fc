"""One data directory has one server and one keeper; who comes second is told so, and the first one's death frees it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skillyard import SyncRuntime
from skillyard.config.backends import NativeSettings
from skillyard.domain.errors import SandboxFault, SkillyardError
from skillyard.domain.sandbox.spec import SandboxSpec
from skillyard.sandbox.native.backend import NativeBackend
from tests.crash.detached import begun_mark, check, kinds, start, steps_of
from tests.crash.leftovers import KEEPER, Footprint, gone
from tests.crash.programs import FOREVER, QUICK
from tests.crash.server import Server, launch, log_of
from tests.crash.store import contradictions

pytestmark = pytest.mark.anyio
BOUND_S = 60


async def test_the_second_refuses_and_the_first_does_not_notice(tmp_path: Path) -> None:
    data_dir, footprint = tmp_path / "data", Footprint(tmp_path / "data")
    with Server(data_dir) as first:
        async with first.callers() as callers:
            run = callers.run(FOREVER)
            await callers.until_begun(1)
            second = launch(data_dir)
            said, _ = await asyncio.to_thread(second.communicate, timeout=BOUND_S)
            assert (second.returncode != 0, said) == (True, b"")
            complaint = log_of(data_dir).read_text().splitlines()[-1]
            assert f"in use by process {first.pid} " in complaint
            assert [record["status"] for record in await callers.records()] == ["running"]
            assert (await callers.run(QUICK, {"n": 3})) is not None
            run.cancel()
        assert first.stop() == 0, first.log()
    gone(footprint)


async def test_the_second_starts_at_once_when_the_first_is_killed(tmp_path: Path) -> None:
    """While its keeper is still there, with a run that is now nobody's. Twice, each as soon as it can be."""
    data_dir, footprint = tmp_path / "data", Footprint(tmp_path / "data")
    for _ in range(2):
        with Server(data_dir) as server:
            async with server.callers() as callers:
                assert await callers.records("running") == []
                run = callers.run(FOREVER)
                await callers.until_begun(1)
                footprint.glance()
                server.kill()
                assert await run is None
    with Server(data_dir) as last:
        async with last.callers() as callers:
            assert [record["outcome"] for record in await callers.records()] == ["lost"] * 2
        assert last.stop() == 0, last.log()
    gone(footprint)
    assert contradictions(data_dir) == []
    assert not (data_dir / "run" / "keeper.sock").exists(), "the keeper that went from server to server ended in order"


@pytest.mark.parametrize("trouble", ["none", "the first hangs", "the lock file was removed"])
def test_the_second_takes_no_detached_run(tmp_path: Path, trouble: str) -> None:
    """Neither a server nor a runtime, whatever became of the lock's file. The first one's runs end as they should."""
    data_dir, footprint = tmp_path / "data", Footprint(tmp_path / "data")
    wanted = [steps_of(number) for number in range(3)]
    with Server(data_dir) as first:
        runs = [start(first, args) for args in wanted]
        marks = [begun_mark(first, run_id) for run_id in runs]
        try:
            if trouble == "the first hangs":
                first.signal(signal.SIGSTOP)
            if trouble == "the lock file was removed":
                (data_dir / "lock").unlink()
            second = launch(data_dir)
            said, _ = second.communicate(timeout=BOUND_S)
            assert (second.returncode != 0, said) == (True, b""), log_of(data_dir).read_text()
            with pytest.raises(SkillyardError), SyncRuntime(data_dir):
                raise AssertionError("it is in use")
        finally:
            first.signal(signal.SIGCONT)
        for run_id, mark, args in zip(runs, marks, wanted, strict=True):
            check(first, run_id, mark, args)
            assert "resumed" not in kinds(first, run_id)
        assert first.stop() == 0, first.log()
    gone(footprint)
    assert contradictions(data_dir) == []


async def test_a_second_keeper_refuses(tmp_path: Path) -> None:
    footprint, backend = Footprint(tmp_path), NativeBackend(tmp_path / "run")
    try:
        sandbox = await backend.create(SandboxSpec(), "the-key")
        keepers = footprint.keepers()
        config = {"run_dir": str((tmp_path / "run").resolve()), **NativeSettings().model_dump()}
        code = f"import json, sys; from {KEEPER} import main; main(json.loads(sys.argv[1]))"
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", code, json.dumps(config)], capture_output=True, timeout=BOUND_S
        )
        assert done.returncode != 0
        assert json.loads(done.stdout) == {"error": "another keeper holds this data directory"}
        assert footprint.keepers() == keepers
        assert [held.handle for held in await backend.survey()] == [sandbox.handle]
    finally:
        await backend.close()
    gone(footprint)


async def test_a_second_backend_is_turned_away(tmp_path: Path) -> None:
    footprint, first, second = Footprint(tmp_path), NativeBackend(tmp_path / "run"), NativeBackend(tmp_path / "run")
    try:
        sandbox = await first.create(SandboxSpec(), "the-key")
        with pytest.raises(SandboxFault, match="another server holds this keeper"):
            await second.survey()
        assert [held.handle for held in await first.survey()] == [sandbox.handle]
    finally:
        await second.close()
        await first.close()
    gone(footprint)


async def test_a_lock_file_that_is_left_says_nothing(tmp_path: Path) -> None:
    """The kernel's lock counts, which ended with its holder; the text in the file is for people."""
    data_dir = tmp_path / "data"
    with Server(data_dir) as server:
        server.kill()
    assert (data_dir / "lock").read_text().startswith(f"process {server.pid} ")
    (data_dir / "lock").write_text(f"process {os.getpid()} (serve)\n")
    footprint = Footprint(data_dir)
    with Server(data_dir) as again:
        assert again.stop() == 0, again.log()
    gone(footprint)
