"""Machines of a real QEMU pass the conformance suite: a part of it in every check, all in the soak."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from skillyard.domain.sandbox.guarantees import OWN_KERNEL, Level, guarantees
from skillyard.domain.work.limits import Limits
from skillyard.sandbox.microvm.backend import MicrovmBackend
from skillyard.sandbox.microvm.probe import WITHOUT
from skillyard.testing.sandbox_suite import CHECKS, Check, Ground
from skillyard.testing.twin_gate import TwinGate
from tests.conformance.sandbox import microvm_ground
from tests.conformance.sandbox.conftest import Hold

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

_SHORT = """
lifecycle-create_at_once_with_one_key_makes_one
lifecycle-enforced_is_what_the_probe_offers
lifecycle-names_that_it_does_not_have_are_refused
endings-kill_ends_the_whole_tree
content-packages_can_be_imported
egress-proxy_clients_find_the_gate_and_nobody_elses
guest-skills_and_blobs_are_read
"""
SHORT = frozenset(_SHORT.split())
BEYOND: dict[str, str] = {
    "special-files-sysfs": "its own control groups are shown",
    **dict.fromkeys(("writing-metadata", "leftovers-shared-times"), "the device files are the machine's own"),
    **dict.fromkeys(
        ("objects-locks", "objects-watches", "objects-in-flight", "objects-tcp", "objects-tcp-unaccepted",
         "objects-udp", "objects-tcp-ended"),
        "what a machine's kernel keeps is the machine's own memory, and no other sandbox is in there",
    ),
}  # fmt: skip
"""Attacks of native walls that tell nothing of machines, or that are not stopped inside; each with the reason."""


def _promises() -> Iterator[Any]:
    for check in CHECKS:
        yield pytest.param(check, id=check.id, marks=() if check.id in SHORT else pytest.mark.long)


@pytest.fixture(scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    image = microvm_ground.image(tmp_path_factory.getbasetemp())
    base, other = tmp_path_factory.mktemp("microvm"), tmp_path_factory.mktemp("other")
    (other / "snapshots").symlink_to(base / "snapshots")  # one is enough
    gate = TwinGate()
    backend = MicrovmBackend(base, microvm_ground.SETTINGS, image, Limits(), gate)

    async def reopen() -> MicrovmBackend:
        return MicrovmBackend(other, microvm_ground.SETTINGS, image, Limits(), gate)

    probe = await backend.probe()
    assert probe.ready, probe.facts
    options: dict[str, Any] = {"witness": microvm_ground.witness, "patience": 6.0, "gate": gate}
    yield Ground(backend, tmp_path_factory.mktemp("scratch"), (base,), reopen, **options)
    for each in (backend, await reopen()):  # tasks outlive a server, and a check that failed may have left one
        for held in await each.survey():
            await each.destroy(held.handle)
        await each.close()
    await gate.close()


@pytest.mark.parametrize("promise", [*_promises()])
async def test_conformance(promise: Check, ground: Ground, hold: Hold) -> None:
    if promise.id in BEYOND:
        pytest.skip(BEYOND[promise.id])
    await hold(promise, ground)


def test_the_short_form_names_checks_that_there_are() -> None:
    assert {check.id for check in CHECKS} >= SHORT | BEYOND.keys()


async def test_the_probe_names_what_is_in_force(ground: Ground) -> None:
    probe = await ground.backend.probe()
    missing = {name for name, held in probe.protections.items() if held.level is Level.MISSING}
    assert missing == WITHOUT
    assert probe.protections[OWN_KERNEL].level is Level.KERNEL
    assert "emulation" in probe.protections[OWN_KERNEL].by
    assert probe.facts["accel"] == "tcg"
    surface = guarantees(probe.protections, ground.backend.nature)["kernel_surface"]
    assert surface.attestor is Level.KERNEL
    assert "emulation" in surface.evidence[0]
