"""The srt backend passes the conformance suite, as root and as an ordinary user.

By default those checks run that tell it from other backends with an agent; `long` runs all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from skillyard.testing.sandbox_suite import CHECKS, Check, Ground
from skillyard.testing.twin_gate import TwinGate
from tests.conformance.sandbox import srt_ground
from tests.conformance.sandbox.conftest import Hold

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(srt_ground.absent()), reason=srt_ground.absent()),
]

_BEYOND = """
proc-dangerous-files proc-dangerous-directories proc-processes proc-settings proc-places special-files-sysfs
files-search writing-everywhere special-files-host-devices
writing-metadata leftovers-shared-times
privileges-capabilities privileges-higher-limits privileges-core-dumps limits-pending-signals syscalls-huge-pages
processes-signal processes-touch processes-signal-everybody processes-starve-init
trees-programs_may_end_what_serves_files leftovers-processes
network-interfaces network-listeners network-meet-by-names leftovers-sockets benign-sockets
objects-locks objects-watches objects-in-flight objects-tcp-ended limits-cpu-affinity
objects-tcp objects-tcp-unaccepted objects-udp
"""
BEYOND = frozenset(_BEYOND.split())
"""Attacks that srt does not stop, and programs that it refuses.

It lets all system calls through but few (docs/srt.md), masks nothing of /proc, gives terminals and the host's device
files, leaves limits to programs, and has helpers of its own in the sandbox: relays on the loopback, and a first process
with capabilities in its own namespace. Objects that the kernel counts for nobody have no watch of ours, it refuses
sockets that pass the limit instead of ending the program, and a quota bounds processors without keeping programs on
one. The agent has the user of its programs and is not the first process: they can end it, and the sandbox with it. Unix
sockets are refused.
"""
WHOLE = ("walls",)
_SHORT = """
lifecycle-create_at_once_with_one_key_makes_one
endings-signal_is_told endings-kill_ends_the_whole_tree endings-usage_is_told
mounts-mounts_cannot_be_changed
content-opened_tree_is_shown content-packages_can_be_imported
egress-proxy_clients_find_the_gate_and_nobody_elses egress-the_trusted_certificates_are_its_own
guest-skills_and_blobs_are_read
survival-task_goes_on_without_its_server
limits-memory_hog_of_many_ends_as_memory limits-cpu
limits-limits_of_two_sandboxes_do_not_add_up
network-outside canaries-files canaries-processes canaries-environment benign-subprocess benign-multiprocessing
"""
SHORT = frozenset(_SHORT.split())


def _promises() -> Iterator[Any]:
    for check in CHECKS:
        if check.id not in BEYOND:
            short = check.section in WHOLE or check.id in SHORT
            yield pytest.param(check, id=check.id, marks=() if short else pytest.mark.long)


@pytest.fixture(scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    base, other = tmp_path_factory.mktemp("srt"), tmp_path_factory.mktemp("other")
    gate = TwinGate()
    backend = srt_ground.backend(base, gate)

    async def reopen() -> Any:
        return srt_ground.backend(other, gate)

    scratch = tmp_path_factory.mktemp("scratch")
    yield Ground(backend, scratch, hidden=(base,), reopen=reopen, patience=3.0, keeps_bounding_set=True, gate=gate)
    await backend.close()
    await gate.close()
    assert [*base.glob("srt-*"), *other.glob("srt-*")] == []


@pytest.mark.parametrize("promise", [*_promises()])
async def test_conformance(promise: Check, ground: Ground, hold: Hold) -> None:
    await hold(promise, ground)


def test_the_lists_name_checks_that_there_are() -> None:
    assert {check.id for check in CHECKS} >= (SHORT | BEYOND)
