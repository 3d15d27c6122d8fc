"""Sandboxes of a real OpenSandbox server pass the conformance suite: a part in every check, all in the soak."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.errors import InvalidInput, ProtectionMissing
from skillyard.domain.sandbox.guarantees import Demand, Level
from skillyard.domain.sandbox.spec import Argv, SandboxSpec, Stream
from skillyard.sandbox.e2b.lifetime import MARGIN_S
from skillyard.sandbox.opensandbox import http_entry
from skillyard.sandbox.opensandbox.backend import OpenSandboxBackend
from skillyard.sandbox.opensandbox.probe import WITHOUT
from skillyard.testing.sandbox_suite import CHECKS, Check, Ground
from skillyard.testing.sandbox_suite.ground import pieces
from skillyard.testing.twin_gate import TwinGate
from tests.conformance.sandbox import opensandbox_ground
from tests.conformance.sandbox.conftest import Hold
from tests.conformance.sandbox.opensandbox_ground import OpenSandbox

pytestmark = [
    # anyio leaves a socket when its connect is cancelled at the moment in which it succeeds.
    pytest.mark.filterwarnings(r"ignore:unclosed <socket.socket.*raddr=\('198\.19:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed transport <_SelectorSocketTransport:ResourceWarning"),
    pytest.mark.anyio,
    pytest.mark.timeout(600),
]

_SHORT = """
lifecycle-create_at_once_with_one_key_makes_one
lifecycle-enforced_is_what_the_probe_offers
lifecycle-names_that_it_does_not_have_are_refused
endings-signal_is_told endings-kill_ends_the_whole_tree
content-packages_can_be_imported
egress-proxy_clients_find_the_gate_and_nobody_elses egress-the_trusted_certificates_are_its_own
guest-skills_and_blobs_are_read
survival-start_and_create_of_an_earlier_server_are_found
privileges-capabilities special-files-host-devices benign-who-am-i
"""
SHORT = frozenset(_SHORT.split())
BEYOND = {
    "files-places": "the directories are the image's own",
    "files-climbing": "the directories are the image's own",
    **dict.fromkeys(
        ("proc-processes", "processes-signal", "leftovers-processes"),
        "the door, the agent and a supervisor stand beside programs as root's: they are seen, and not signalled",
    ),
    "special-files-sysfs": "the engine shows /sys, read-only, and the server has no word for it",
    "writing-metadata": "the device files are the container's own",
    "benign-sockets": "networks of the engine have no IPv6, unless it is told to",
    "benign-text": "the tests' image has no time zones",
    "objects-locks": "the kernel counts record locks for nobody, and nobody watches them",
    **dict.fromkeys(
        ("objects-watches", "objects-in-flight"),
        "the kernel counts them by user, of whom each sandbox has one of its own, and nobody watches them",
    ),
    **dict.fromkeys(
        ("objects-tcp", "objects-tcp-unaccepted", "objects-tcp-ended", "objects-udp"),
        "control groups of version 1 count no memory of sockets, and the server has no word for it",
    ),
    "network-interfaces": "the container has an interface, on which the sidecar denies every way out, and the door's "
    "and the agent's sockets are seen",
    "network-listeners": "the door listens where the server leads to it, and heeds nobody without its token",
}
"""Checks that tell nothing of such sandboxes, or that they do not pass; each with the reason."""


def _promises() -> Iterator[Any]:
    for check in CHECKS:
        yield pytest.param(check, id=check.id, marks=() if check.id in SHORT else pytest.mark.long)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSandbox]:
    with opensandbox_ground.open_sandbox(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture(scope="module")
async def ground(server: OpenSandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    base, other = tmp_path_factory.mktemp("osb"), tmp_path_factory.mktemp("other")
    gate = TwinGate()
    backend = OpenSandboxBackend(base, server.settings(), gate)

    async def reopen() -> OpenSandboxBackend:
        return OpenSandboxBackend(other, server.settings(), gate)

    probe = await backend.probe()
    assert probe.ready, probe.facts
    yield Ground(backend, tmp_path_factory.mktemp("scratch"), (base,), reopen, patience=3.0, gate=gate)
    await backend.close()
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
    assert missing - {"cgroup_namespace"} == WITHOUT  # engines with control groups of version 1 share that one
    assert {held.level for held in probe.protections.values()} == {Level.PROVIDER, Level.MISSING}
    counted = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    assert ("counts no queues of sockets" in probe.protections["memory"].by) != counted
    ways = ("server (", "public (", "gateway ", "execd (refused)", "policy (401)", "dns 8.8.8.8 (")
    assert all(way in probe.facts["denied"] for way in ways), probe.facts["denied"]


async def test_a_way_out_is_found_by_trying_it(server: OpenSandbox, tmp_path: Path) -> None:
    """A sidecar that answers as if it enforced, and does not."""
    server.stop()
    server.start(egress=opensandbox_ground.ASLEEP)
    backend = OpenSandboxBackend(tmp_path, server.settings())
    try:
        probe = await backend.probe()
        held = probe.protections["net_namespace"]
        assert held.level is Level.MISSING
        assert "server" in held.why
        assert "gateway" in held.why
        with pytest.raises(ProtectionMissing, match=r"net_namespace \(a test sandbox reached"):
            Demand(frozenset(), WITHOUT).check(probe.protections)
        with pytest.raises(ProtectionMissing):
            await backend.create(SandboxSpec(), "key")
    finally:
        await backend.close()
        server.stop()
        server.start()


async def test_a_server_on_the_loopback_is_tried_at_another_address_of_this_host(
    server: OpenSandbox, tmp_path: Path
) -> None:
    """The same address is a sandbox's own inside it, and our agent answers there."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other, onwards = await asyncio.open_connection(server.address, opensandbox_ground.PORT)
        await asyncio.gather(_copied(reader, onwards), _copied(other, writer))

    loopback = f"127.{1 + secrets.randbelow(250)}.{secrets.randbelow(250)}.1"
    relay = await asyncio.start_server(carry, loopback, http_entry.PORT)
    backend = OpenSandboxBackend(tmp_path, server.settings(domain=f"{loopback}:{http_entry.PORT}"))
    try:
        probe = await backend.probe()
        assert probe.ready, probe.facts
        assert probe.protections["net_namespace"].level is Level.PROVIDER, probe.protections["net_namespace"]
        assert "server (" in probe.facts["denied"]
    finally:
        await backend.close()
        relay.close()


async def test_sandboxes_are_reached_through_the_server(server: OpenSandbox, tmp_path: Path) -> None:
    """Where their ports are not to be reached: the server leads to itself, and asks for its key."""
    server.stop()
    server.start(behind=True)
    backend = OpenSandboxBackend(tmp_path, server.settings(use_server_proxy=True))
    try:
        probe = await backend.probe()
        assert probe.ready, probe.facts
        async with Ground(backend, tmp_path).sandbox() as sandbox:
            assert await sandbox.write("/workspace/a", pieces(b"x" * 300_000)) == 300_000
            process = await sandbox.start(Argv(("sh", "-c", "wc -c < a; exit 3")), id="one")
            assert b"".join([data async for data in process.output(Stream.STDOUT)]) == b"300000\n"
            assert (await process.wait()).code == 3
        log = (server.scratch / "server.log").read_text("utf-8", "replace")
        assert f"/sandboxes/{sandbox.handle}/proxy/{http_entry.PORT}/" in log
    finally:
        await backend.close()
        server.stop()
        server.start()


async def test_a_sandbox_outlives_each_program_that_is_started_in_it(ground: Ground, server: OpenSandbox) -> None:
    """It ends by itself when nobody renews it: the server has a time for each."""
    async with ground.sandbox() as sandbox:
        assert 0 < server.left_s(sandbox.handle) <= 300 + MARGIN_S
        await sandbox.start(Argv(("sleep", "1000")), id="long", timeout_ms=900_000)
        assert 900 <= server.left_s(sandbox.handle) <= 900 + MARGIN_S
        await sandbox.start(Argv(("sleep", "1000")), id="longer", timeout_ms=24 * 3600 * 1000)
        assert 3590 <= server.left_s(sandbox.handle) <= 3600, "opensandbox.max_ttl_s; it is renewed later"


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def test_an_image_must_be_named_by_the_operator(ground: Ground) -> None:
    with pytest.raises(InvalidInput, match="must name the image by digest"):
        await ground.backend.create(await ground.spec(image="other"), "other")
    assert await ground.backend.survey() == []
