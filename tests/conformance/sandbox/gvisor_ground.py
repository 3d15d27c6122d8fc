"""Which runsc the tests find: the operator's setting, else the one on PATH; and a Ground over its backend."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from skillyard.config.backends import GvisorSettings
from skillyard.sandbox.native.grounds.gvisor import runsc
from skillyard.sandbox.native.grounds.gvisor.backend import GvisorBackend
from skillyard.sandbox.native.keeper.watch.processes import tree_of
from skillyard.testing.sandbox_suite import Ground
from skillyard.testing.sandbox_suite.ground import processes

OPTIONS = GvisorSettings(runsc=os.environ.get("SKILLYARD_GVISOR__RUNSC", ""))


def absent() -> str:
    """Why nothing can be tested; empty when runsc is there."""
    return "" if runsc.locate(OPTIONS.runsc) else "no runsc on PATH and none named by SKILLYARD_GVISOR__RUNSC"


def named(path: str) -> GvisorSettings:
    return OPTIONS.changed(runsc=path)


def options(platform: str) -> GvisorSettings:
    return OPTIONS.changed(platform=platform)


@asynccontextmanager
async def standing(base: Path, platform: str = "auto") -> AsyncIterator[Ground]:
    """``base`` is empty; afterwards nothing of the backend is left but its files there."""
    chosen = options(platform)
    backend = GvisorBackend(base / "run", chosen)
    scratch = base / "scratch"
    scratch.mkdir()
    try:
        yield Ground(backend, scratch, (base / "run",), _reopen(base / "again", chosen), _witness, patience=4.0)
    finally:
        await backend.close()


async def _witness(handle: str) -> list[int]:
    """runsc, which carries the handle in its command line, and all below it."""
    return sorted({pid for runsc in processes(handle) for pid in tree_of(runsc)})


def _reopen(run_dir: Path, chosen: GvisorSettings) -> Callable[[], Awaitable[GvisorBackend]]:
    async def reopen() -> GvisorBackend:
        return GvisorBackend(run_dir, chosen)

    return reopen
