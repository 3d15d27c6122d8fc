"""What is the native backend's own about egress: its keeper's part, its bounds, and what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path

import pytest

from skillyard.config.backends import NativeSettings
from skillyard.domain.errors import GateFault, ProtectionMissing, SandboxFault
from skillyard.domain.network.session import DNS_PORT, MOST_PORTS, PROXY_PORT, TRUST_FILE, USUAL_PORTS, Egress, Endpoint
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.guarantees import Level
from skillyard.domain.sandbox.spec import Mount
from skillyard.domain.work.limits import Limits
from skillyard.gate import session
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.grounds.landlock.backend import LandlockBackend
from skillyard.sandbox.native.grounds.namespaces import listening
from skillyard.sandbox.native.inside import walls
from skillyard.testing.sandbox_suite import Ground
from skillyard.testing.sandbox_suite.egress import LOOK_UP, TALK
from skillyard.testing.sandbox_suite.ground import fresh, look, processes, python, start, until
from skillyard.testing.twin_gate import KNOWN_NAME, TwinGate
from tests.hosts.landlock.host import need

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary]
PLAN = Egress("session", (443, 8080))


@pytest.fixture(scope="module")
async def gate() -> AsyncIterator[TwinGate]:
    gate = TwinGate()
    yield gate
    await gate.close()


@pytest.fixture(scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory, gate: TwinGate) -> AsyncIterator[Ground]:
    backend = NativeBackend(tmp_path_factory.mktemp("native") / "run", plug=gate)
    if not (found := await backend.probe()).ready:
        pytest.skip(found.facts["why"])
    if (egress := found.abilities["egress"]).level is Level.MISSING:
        pytest.skip(egress.why)
    yield Ground(backend, tmp_path_factory.mktemp("scratch"), gate=gate)
    await backend.close()


def keeper_of(ground: Ground) -> int:
    """Of the processes that carry its run directory, the one that is not its launcher."""
    assert isinstance(ground.backend, NativeBackend)
    (pid,) = processes(str(ground.backend._run_dir))
    return pid


def descriptors(pid: int | str) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


class Refusing:
    """A gate that is gone: it fails when it is to serve, as soon as it may."""

    def __init__(self) -> None:
        self.given: list[Sequence[socket.socket]] = []
        self.may_fail = asyncio.Event()

    def served(self, session: str) -> Collection[int]:
        return ()

    async def way(self, session: str) -> Endpoint:
        raise GateFault(f"{session}: the gate is gone")

    async def plug(self, session: str, sockets: Sequence[socket.socket]) -> None:
        self.given.append(sockets)
        await self.may_fail.wait()
        raise GateFault(f"{session}: the gate is gone")


async def test_as_many_ports_as_there_may_be(ground: Ground, gate: TwinGate) -> None:
    ports = tuple(range(1024, 1024 + 3 * MOST_PORTS, 3))
    assert len(ports) == MOST_PORTS
    await ground.backend.destroy((await ground.backend.create(await ground.spec(), fresh("key"))).handle)
    keeper, before = keeper_of(ground), descriptors("self")
    session = await gate.open("many")
    limits = Limits(memory_mb=64, timeout_ms=20_000)
    async with ground.sandbox(limits, egress=Egress(session.id, ports)) as sandbox:
        watched = "time.sleep(0.3)  # longer than from one look of a watch on memory to the next"
        told = await look(
            sandbox, TALK + watched, f"203.0.113.7 {ports[0]}", f"203.0.113.7 {ports[-1]}", "203.0.113.7 1025"
        )
        assert [said.split()[0] for said, _ in told] == ["meant", "meant", "ConnectionRefusedError"]
        assert session.ports() == sorted({*ports, DNS_PORT, PROXY_PORT})
        assert descriptors(keeper) < MOST_PORTS, "the keeper has let go of what it handed over"
    await session.close()
    await asyncio.sleep(0)
    assert descriptors("self") <= before + 2


async def test_more_than_that_are_refused(ground: Ground, gate: TwinGate) -> None:
    session = await gate.open("too many")
    with pytest.raises(SandboxFault, match="at most"):
        await ground.backend.create(await ground.spec(egress=Egress(session.id, tuple(range(1, 400)))), fresh("key"))
    with pytest.raises(SandboxFault, match="from 1 to 65535"):
        await ground.backend.create(await ground.spec(egress=Egress(session.id, (70_000,))), fresh("key"))


async def test_the_keeper_has_a_network_of_its_own(ground: Ground) -> None:
    await ground.backend.survey()
    assert os.readlink(f"/proc/{keeper_of(ground)}/ns/net") != os.readlink("/proc/self/ns/net")
    text = Path(f"/proc/{keeper_of(ground)}/net/dev").read_text()
    assert [line.split(":")[0].strip() for line in text.splitlines()[2:]] == ["lo"]


async def test_two_who_ask_for_the_same_sandbox_get_it_plugged_in(ground: Ground, gate: TwinGate) -> None:
    session = await gate.open("same")
    key, spec = fresh("key"), await ground.spec(egress=Egress(session.id, PLAN.ports))
    one, other = await asyncio.gather(ground.backend.create(spec, key), ground.backend.create(spec, key))
    again = await ground.backend.create(spec, key)
    try:
        assert one.handle == other.handle == again.handle
        assert session.ports() == sorted((*PLAN.ports, DNS_PORT, PROXY_PORT))
    finally:
        await ground.backend.destroy(one.handle)
        await session.close()


async def test_without_a_gate_there_is_no_egress(tmp_path: Path, ground: Ground) -> None:
    backend = NativeBackend(tmp_path / "run")
    try:
        ability = (await backend.probe()).abilities["egress"]
        assert (ability.level, ability.why) == (Level.MISSING, "the server has no gate to plug sandboxes into")
        with pytest.raises(ProtectionMissing, match="no gate"):
            await backend.create(await ground.spec(egress=PLAN), fresh("key"))
        assert await backend.survey() == []
    finally:
        await backend.close()


async def test_names_without_egress_are_unknown_at_once(ground: Ground) -> None:
    """Not a temporary failure, after which programs try again."""
    ((found, took),) = await ground.look(LOOK_UP, KNOWN_NAME)
    assert found == "unknown"
    assert took < 4, "a resolver tries again after 5 s (resolv.conf(5))"


async def test_a_create_that_comes_to_nothing_leaves_nothing(tmp_path: Path, ground: Ground) -> None:
    """The gate is gone, or whoever asked went away while the gate was told."""
    refusing = Refusing()
    backend = NativeBackend(tmp_path / "run", plug=refusing)
    spec = await ground.spec(egress=PLAN)
    try:
        refusing.may_fail.set()
        with pytest.raises(GateFault, match="the gate is gone"):
            await backend.create(spec, fresh("key"))
        assert await backend.survey() == []
        refusing.may_fail.clear()
        making = asyncio.create_task(backend.create(spec, fresh("key")))
        async with asyncio.timeout(20):
            while len(refusing.given) < 2:
                await asyncio.sleep(0.01)
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
            while await backend.survey():
                await asyncio.sleep(0.01)
        assert all(sock.fileno() == -1 for sockets in refusing.given for sock in sockets)
    finally:
        await backend.close()


async def test_a_sandbox_that_shares_the_hosts_network_is_never_listened_in(tmp_path: Path) -> None:
    """What would make every address of the host lead to the host itself."""
    backend = LandlockBackend(tmp_path / "run")
    need(await backend.probe())
    ground = Ground(backend, tmp_path)
    try:
        async with ground.sandbox() as sandbox:
            with pytest.raises(SandboxFault, match="host's network"):
                await backend.open_sockets(sandbox.handle, {"streams": [443], "datagrams": []})
    finally:
        await backend.close()


@pytest.mark.parametrize("target", ["/run/egress", "/run/egress/other.pem", "/run/egress/../box", "/etc/resolv.conf"])
async def test_nothing_else_can_be_shown_beside_the_certificates(ground: Ground, target: str) -> None:
    shown = Mount(Content("x", ground.scratch), target)
    with pytest.raises(SandboxFault, match="nothing can be shown at"):
        await ground.backend.create(await ground.spec(mounts=(shown,)), fresh("key"))


async def test_a_directory_of_certificates_is_no_file(ground: Ground) -> None:
    with pytest.raises(SandboxFault, match="Invalid argument"):
        await ground.backend.create(
            await ground.spec(mounts=(Mount(Content("x", ground.scratch), TRUST_FILE),)), fresh("key")
        )


def test_both_sides_say_the_same() -> None:
    assert str(session.OWN) == listening.SANDBOX_ADDRESS
    assert walls.TRUST == TRUST_FILE
    assert len(USUAL_PORTS) <= MOST_PORTS


UNSENT = """
import socket
server = socket.create_server(('127.0.0.1', 8080))
print('listens', flush=True)
there = server.accept()[0]
there.settimeout(1)
try:
    while True: there.send(b'x' * 65536)
except OSError: pass
"""
LEFT = "import json; print(json.dumps([line.split()[3] for line in list(open('/proc/net/tcp'))[1:]]))"
SET = """
import json
names = ('tcp_rto_max_ms', 'tcp_orphan_retries')
print(json.dumps([open('/proc/sys/net/ipv4/' + name).read().strip() for name in names]))
"""
FIN_WAIT1 = "04"


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "python"])
async def test_a_connection_whose_program_ended_does_not_live_for_minutes(tmp_path: Path, compiled: bool) -> None:
    """What it holds is charged to nobody any more. By itself the kernel tries for two minutes to send it."""
    if not os.path.exists("/proc/sys/net/ipv4/tcp_rto_max_ms"):
        pytest.skip("this kernel has no net.ipv4.tcp_rto_max_ms")
    backend = NativeBackend(tmp_path / "run", NativeSettings(compiled=compiled))
    try:
        if (found := (await backend.probe()).abilities["forwarding"]).level is Level.MISSING:
            pytest.skip(found.why)
        ground = Ground(backend, tmp_path)
        async with ground.sandbox(Limits(timeout_ms=60_000), forwarding=True) as sandbox:
            process = await start(sandbox, python(UNSENT))
            await until(process, b"listens")
            stream = await sandbox.forward(8080)  # type: ignore[attr-defined]
            await process.wait()
            assert await look(sandbox, SET) == ["1000", "1"]
            async with asyncio.timeout(60):
                while FIN_WAIT1 in await look(sandbox, LEFT):
                    await asyncio.sleep(0.2)
            await stream.close()
    finally:
        await backend.close()
