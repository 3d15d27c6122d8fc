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

_BEYOND = {
    "nothing of /proc and /sys is masked": """
        proc-dangerous-files proc-dangerous-directories proc-settings special-files-sysfs""",
    "the table of mounts names the places of what is bound on the host": "proc-places",
    "new terminals can be opened": "files-search writing-everywhere special-files-host-devices",
    "the device files are the host's own": "writing-metadata leftovers-shared-times",
    "the bounding set stays, and srt's first process has capabilities in its own namespace": "privileges-capabilities",
    "limits stay the programs' own": "privileges-higher-limits limits-pending-signals",
    "its filter lets all system calls through but few": "syscalls-huge-pages",
    "a quota bounds processors, without keeping programs on one": "limits-cpu-affinity",
    "the agent and srt's helpers have the user of programs, which see them, and can end them and the sandbox": """
        proc-processes processes-signal processes-touch processes-signal-everybody leftovers-processes
        trees-programs_may_end_what_serves_files""",
    "srt's relays listen on its loopback": "network-interfaces network-listeners",
    "unix sockets are refused": "network-meet-by-names leftovers-sockets benign-sockets",
    "the kernel counts them for a user or for nobody, and nobody watches them": """
        objects-locks objects-watches objects-in-flight objects-tcp-ended""",
    "sockets above the limit are refused, and the program goes on": "objects-tcp objects-tcp-unaccepted objects-udp",
}
BEYOND = {attack: why for why, attacks in _BEYOND.items() for attack in attacks.split()}
"""Attacks that srt does not stop, and programs that it refuses, with the reasons (docs/srt.md)."""
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
    assert {check.id for check in CHECKS} >= SHORT | BEYOND.keys()
