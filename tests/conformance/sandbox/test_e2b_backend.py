"""Machines behind E2B's SDK pass the conformance suite: a part of it in every check, all in the soak."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from skillyard.domain.errors import InvalidInput
from skillyard.domain.sandbox.guarantees import Level
from skillyard.sandbox.e2b.backend import E2bBackend
from skillyard.sandbox.e2b.probe import WITHOUT
from skillyard.testing.sandbox_suite import CHECKS, Check, Ground
from skillyard.testing.twin_gate import TwinGate
from tests.conformance.sandbox import e2b_ground
from tests.conformance.sandbox.conftest import Hold
from tests.conformance.sandbox.e2b_ground import BAKED, StandIn

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

_SHORT = """
lifecycle-create_at_once_with_one_key_makes_one
lifecycle-enforced_is_what_the_probe_offers
lifecycle-names_that_it_does_not_have_are_refused
endings-signal_is_told endings-kill_ends_the_whole_tree
limits-full_disk_is_no_memory_kill
content-packages_can_be_imported
egress-proxy_clients_find_the_gate_and_nobody_elses egress-the_trusted_certificates_are_its_own
guest-skills_and_blobs_are_read
survival-start_and_create_of_an_earlier_server_are_found
"""
SHORT = frozenset(_SHORT.split())
_SHARED = "machines of the stand-in share this host's kernel, and users are the same in it; a provider's do not"
BEYOND = {
    "special-files-sysfs": "its own control groups are shown",
    **dict.fromkeys(("writing-metadata", "leftovers-shared-times"), "the device files are the machine's own"),
    **dict.fromkeys(
        ("walls-two_sandboxes_are_two_users", "namespaces-shared-uid", "objects-locks", "objects-watches",
         "objects-in-flight", "objects-tcp", "objects-tcp-unaccepted", "objects-tcp-ended", "objects-udp"),
        _SHARED,
    ),
}  # fmt: skip
"""Attacks of native walls that tell nothing of machines, or that the stage does not stop; each with the reason."""


def _promises() -> Iterator[Any]:
    for check in CHECKS:
        yield pytest.param(check, id=check.id, marks=() if check.id in SHORT else pytest.mark.long)


@pytest.fixture(scope="module")
async def ground(provider: StandIn, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    async for found in _ground(provider, BAKED, tmp_path_factory):
        yield found


@pytest.fixture(scope="module")
async def without_start(provider: StandIn, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    async for found in _ground(provider, "base", tmp_path_factory):
        yield found


async def _ground(provider: StandIn, template: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    base, other = tmp_path_factory.mktemp("e2b"), tmp_path_factory.mktemp("other")
    gate, settings = TwinGate(), provider.settings.model_copy(update={"template": template})
    backend = E2bBackend(base, settings, e2b_ground.key, gate)

    async def reopen() -> E2bBackend:
        return E2bBackend(other, settings, e2b_ground.key, gate)

    probe = await backend.probe()
    assert probe.ready, probe.facts
    yield Ground(backend, tmp_path_factory.mktemp("scratch"), (base,), reopen, gate=gate)
    await backend.close()
    await gate.close()


@pytest.mark.parametrize("promise", [*_promises()])
async def test_conformance(promise: Check, ground: Ground, hold: Hold) -> None:
    if promise.id in BEYOND:
        pytest.skip(BEYOND[promise.id])
    await hold(promise, ground)


@pytest.mark.parametrize("promise", [check for check in CHECKS if check.id in SHORT], ids=lambda check: check.id)
async def test_conformance_where_no_stage_waits(promise: Check, without_start: Ground, hold: Hold) -> None:
    await hold(promise, without_start)


def test_the_short_form_names_checks_that_there_are() -> None:
    assert {check.id for check in CHECKS} >= SHORT | BEYOND.keys()


async def test_the_probe_names_what_is_in_force(ground: Ground) -> None:
    probe = await ground.backend.probe()
    missing = {name for name, held in probe.protections.items() if held.level is Level.MISSING}
    assert missing == WITHOUT
    assert {held.level for held in probe.protections.values()} == {Level.PROVIDER, Level.MISSING}
    # The machines of the stand-in have this host's kernel, and a provider's word to the contrary is not taken.
    assert "own_kernel" not in probe.protections
    assert probe.facts["own_kernel"].startswith("no")


async def test_a_template_must_be_named_by_the_operator(ground: Ground) -> None:
    with pytest.raises(InvalidInput, match=r"must be one of e2b\.templates"):
        await ground.backend.create(await ground.spec(image="basex"), "other")
    assert await ground.backend.survey() == []


async def test_machines_have_no_way_to_the_internet_and_end_by_themselves(ground: Ground, provider: StandIn) -> None:
    sandbox = await ground.backend.create(await ground.spec(image="other"), "other")
    machine = provider.machines()[sandbox.handle]
    await ground.backend.destroy(sandbox.handle)
    assert machine["order"]["allow_internet_access"] is False
    assert machine["order"]["autoPause"] is False
    assert machine["order"]["templateID"] == "other"
    assert 0 < machine["order"]["timeout"] <= provider.settings.max_ttl_s
