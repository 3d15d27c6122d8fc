"""What the operator has imported ahead behind Landlock: what cannot be is left out, as with the native backend."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from skillyard.config.backends import NativeSettings
from skillyard.domain.sandbox.spec import Argv
from skillyard.sandbox.native.grounds.landlock.backend import LandlockBackend
from skillyard.sandbox.registry import nature
from tests.attacks.preloading.packages import Yard, write_packages
from tests.hosts.landlock.host import need

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def yard(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Yard]:
    base = tmp_path_factory.mktemp("preloading")
    backend = LandlockBackend(base / "run", NativeSettings(ready=0, preload_mb=96, preload_s=1.5))
    need(await backend.probe())
    yield Yard(backend, write_packages(base / "packages"), nature("landlock").without)
    await backend.close()


async def test_modules_at_fault_are_left_out(yard: Yard) -> None:
    assert await yard.imported("good", "threads", "leaves", "hangs", "claims", "fine") == ["good", "fine"]


async def test_nothing_is_made_ready_but_what_the_operator_names(yard: Yard) -> None:
    assert await yard.backend.prepare(yard.spec("good")) is None


async def test_a_zygote_that_was_spoiled_makes_no_sandbox_that_is_used(yard: Yard) -> None:
    """An ordinary user's has no capability to keep."""
    assert await yard.imported("forgives") == ([] if os.geteuid() == 0 else ["forgives"])


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's has no capability to keep")
async def test_a_process_beside_the_worker_keeps_no_rights(yard: Yard) -> None:
    assert await yard.imported("keeps_rights") == []


async def test_nobody_has_the_pid_of_a_zygote_while_a_sandbox_of_it_lives(tmp_path: Path) -> None:
    """Libraries tell a fork by their pid, and these pids are the host's."""
    backend = LandlockBackend(tmp_path / "run", NativeSettings(ready=0, retire_s=0.5))
    need(await backend.probe())
    yard = Yard(backend, write_packages(tmp_path / "packages"), nature("landlock").without)
    try:
        (zygote,) = await yard.evaluate("[pids.of_zygote]", "pids")
        kept = await backend.create(yard.spec("pids"), "kept")
        assert await _becomes(zygote, "Z")
        process = await kept.start(Argv(("echo", "on")), id="p")
        assert (await process.wait()).code == 0
        assert _state(zygote) == "Z"
        await backend.destroy(kept.handle)
        assert await _becomes(zygote, "")
    finally:
        await backend.close()


async def _becomes(pid: int, state: str) -> bool:
    with anyio.move_on_after(10):
        while _state(pid) != state:
            await anyio.sleep(0.02)
    return _state(pid) == state


def _state(pid: int) -> str:
    """A letter of proc_pid_stat(5), empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
