"""One landlock backend for all attacks, and what they need of the host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from skillyard.sandbox.native.grounds.landlock.backend import LandlockBackend
from skillyard.testing.sandbox_suite import Ground
from tests.hosts.landlock.host import need


@pytest.fixture(scope="package")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    backend = LandlockBackend(tmp_path_factory.mktemp("landlock") / "run")
    need(await backend.probe())
    yield Ground(backend, tmp_path_factory.mktemp("scratch"))
    await backend.close()


@pytest.fixture
def bystander() -> Iterator[int]:
    """A process of the server's own user that no sandbox has to do with."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        assert process.poll() is None, "it was ended"
        process.kill()


@pytest.fixture
def canary() -> Iterator[Path]:
    """A file of the server's own user that everybody may read, in a place that everybody can reach."""
    place = Path("/var/tmp") / f"canary-{os.getpid()}"
    place.mkdir(mode=0o755)
    file = place / "file"
    file.write_text("canary")
    file.chmod(0o644)
    os.utime(file, (1000, 1000))
    yield file
    file.unlink()
    place.rmdir()
