"""The gVisor backend passes the conformance suite, as root and as an ordinary user, on each platform that works.

By default those checks run that tell it from other backends, on the platform that it would choose; `long` runs all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from skillyard.testing.sandbox_suite import CHECKS, Check, Ground
from tests.conformance.sandbox import gvisor_ground
from tests.conformance.sandbox.conftest import Hold

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(gvisor_ground.absent()), reason=gvisor_ground.absent()),
]

WHOLE = ("walls", "proc", "privileges", "special-files")
"""Sections of which every check is told by the sentry."""
_SHORT = """
leftovers-files
endings-signal_is_told endings-kill_ends_the_whole_tree endings-usage_is_told
disk-three-places
mounts-mounts_cannot_be_changed
content-opened_tree_is_shown content-packages_can_be_imported
guest-skills_and_blobs_are_read
survival-task_goes_on_without_its_server
"""
SHORT = frozenset(_SHORT.split())


def _promises() -> Iterator[Any]:
    for check in CHECKS:
        short = check.section in WHOLE or check.id in SHORT
        yield pytest.param(check, id=check.id, marks=() if short else pytest.mark.long)


@pytest.fixture(scope="module", params=["auto", pytest.param("ptrace", marks=pytest.mark.long)])
async def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    async with gvisor_ground.standing(tmp_path_factory.mktemp("gvisor"), request.param) as ground:
        probe = await ground.backend.probe()
        assert probe.ready, probe.facts
        yield ground


@pytest.mark.parametrize("promise", [*_promises()])
async def test_conformance(promise: Check, ground: Ground, hold: Hold) -> None:
    await hold(promise, ground)


def test_the_short_form_names_checks_that_there_are() -> None:
    assert {check.id for check in CHECKS} >= SHORT
