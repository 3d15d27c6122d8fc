"""The port is not shaped by fork: create, channel and destroy around an agent pass the same suite."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from skillyard.testing.sandbox_suite import Check, Ground
from tests.conformance.sandbox import exec_walls
from tests.conformance.sandbox.conftest import Hold
from tests.conformance.sandbox.exec_backend import ExecBackend

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(bool(exec_walls.missing_tools()), reason=exec_walls.missing_tools()),
]


_BEYOND = """
proc-dangerous-files proc-dangerous-directories proc-places special-files-sysfs
files-search writing-everywhere special-files-host-devices
writing-metadata leftovers-shared-times
privileges-regaining namespaces-enter processes-end-init
"""
BEYOND = frozenset(_BEYOND.split())
"""Attacks that bubblewrap alone does not stop: it masks nothing of /proc, gives terminals and the host's device files,
filters no system call, and has a plain init."""


@pytest.fixture(scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    base, other = tmp_path_factory.mktemp("exec"), tmp_path_factory.mktemp("other")
    backend = ExecBackend(base)

    async def reopen() -> ExecBackend:
        return ExecBackend(other)

    yield Ground(backend, scratch=tmp_path_factory.mktemp("scratch"), hidden=(base,), reopen=reopen)
    await backend.close()
    assert [*base.iterdir(), *other.iterdir()] == []


async def test_conformance(check: Check, ground: Ground, hold: Hold) -> None:
    if check.id in BEYOND:
        pytest.skip("bubblewrap alone does not stop it")
    await hold(check, ground)
