"""Kept sessions: they outlive their server, and go on in another gate when theirs is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from skillyard.domain.errors import GateFault, StoreFault
from skillyard.domain.network.rule import parse_rule
from skillyard.domain.network.session import EgressLimits, EgressPlan, EndpointKind, GateSecret, new_placeholder
from skillyard.gate.client import ProcessGate
from skillyard.stores.seal.keys import GivenKeys, Key, OwnKeyFile
from skillyard.stores.seal.sessions import SealedSessions
from tests.conformance.gate.conftest import GATE_UID
from tests.conformance.gate.gates import Plugged, Server, cut_off, echo, policy, reaching, turned_away, until
from tests.conformance.gate.house import House
from tests.conformance.gate.intercepted import TOKEN, Outside, all_of
from tests.conformance.gate.rooms import Room, Rooms
from tests.conformance.gate.test_endpoint import closed, http
from tests.conformance.gate.test_gate_process import _runs

pytestmark = pytest.mark.anyio
KEY = "run_1"
BOXES: list[Plugged] = []


@pytest.fixture
async def house(tmp_path: Path, outside: Outside) -> AsyncIterator[House]:
    house = House(tmp_path, outside.authority.ca_file)
    yield house
    await closed_whole(house)


async def closed_whole(house: House) -> None:
    """Closes the house, and the connections of its tests."""
    await house.close()
    for box in BOXES:
        for writer in box._writers:
            writer.transport.abort()
    BOXES.clear()
    await asyncio.sleep(0)


@asynccontextmanager
async def echoing() -> AsyncIterator[Server]:
    async with Server(echo) as server:
        yield server


async def kept(gate: ProcessGate, room: Room, plan: EgressPlan, *ports: int) -> Plugged:
    session = await gate.open(KEY, plan, kept=True)
    await gate.plug(session.id, await asyncio.to_thread(room.listen, *ports))
    return remembered(Plugged(gate, session, room))


def remembered(box: Plugged) -> Plugged:
    """Its connections are closed after the test."""
    BOXES.append(box)
    return box


async def attached(gate: ProcessGate, room: Room, *ports: int) -> Plugged:
    """As a new server does it: the sandbox is plugged in again where the gate has no sockets of it."""
    session = await gate.attach(KEY)
    if not gate.served(session.id):
        await gate.plug(session.id, await asyncio.to_thread(room.listen, *ports))
    return remembered(Plugged(gate, session, room))


def kill(gate: ProcessGate) -> None:
    assert gate._link is not None
    os.kill(gate._link.pid, signal.SIGKILL)


async def killed(gate: ProcessGate) -> None:
    """As the engine does it: kills the gate's process, and has another one started."""
    link = gate._link
    assert link is not None
    kill(gate)
    await until(lambda: not link.alive)
    await gate.restart()


def refuses(room: Room, port: int) -> bool:
    """Whether nobody listens in the sandbox."""
    try:
        room.dial("198.18.0.2", port).close()
    except ConnectionRefusedError:
        return True
    return False


async def reported(box: Plugged, connections: int) -> None:
    """Waits until the server was told of so many connections."""
    state = box.gate._kept[KEY]._state
    await until(lambda: sum(row["count"] for row in state["log"]["connections"] if row["allowed"]) >= connections)
    await box.gate._kept[KEY].seal()


async def said(box: Plugged, name: str, port: int) -> bytes:
    reader, writer = await box.dial(name, port)
    writer.write(b"hello\n")
    async with asyncio.timeout(20):
        return await reader.readline()


async def test_a_connection_outlives_its_server(house: House, rooms: Rooms) -> None:
    async with echoing() as server:
        room = rooms.room()
        box = await kept(house.server(), room, reaching(server, "api.test"), server.port)
        reader, writer = await box.dial("api.test", server.port)
        writer.write(b"before\n")
        await reader.readline()
        assert box.gate._link is not None
        pid = box.gate._link.pid
        again = await attached(house.server(), room)
        assert again.session.id == box.session.id
        assert again.gate._link is not None
        assert again.gate._link.pid == pid
        writer.write(b"after\n")
        assert await reader.readline() == b"after\n"
        assert await said(again, "api.test", server.port) == b"hello\n"
        assert set(again.gate.served(again.session.id)) == {53, 3128, server.port}
        await again.session.change(policy())
        with pytest.raises((ConnectionError, LookupError)):
            await said(again, "api.test", server.port)
        rows = (await again.close()).connections
        assert sum(row.count for row in rows if row.allowed) == 2
        assert not any(row.via == "gate" for row in rows), "nothing was lost"


async def test_run_sessions_end_with_their_server(house: House, rooms: Rooms) -> None:
    async with echoing() as server:
        gate = house.server()
        box = await kept(gate, rooms.room(), reaching(server, "api.test"), server.port)
        other = await gate.open("run_2", reaching(server, "api.test"))
        room = rooms.room()
        await gate.plug(other.id, await asyncio.to_thread(room.listen, server.port))
        await remembered(Plugged(gate, other, room)).dial("api.test", server.port)
        next_one = house.server()
        assert set(await next_one.held()) == {KEY}
        await until(lambda: refuses(room, server.port))
        assert await said(box, "api.test", server.port) == b"hello\n"
        with pytest.raises(GateFault, match="keeps no session 'run_2'"):
            await next_one.attach("run_2")


@pytest.mark.parametrize("server_too", [False, True], ids=["gate", "server and gate"])
async def test_a_session_goes_on_in_another_gate(house: House, rooms: Rooms, server_too: bool) -> None:
    async with echoing() as server:
        room = rooms.room()
        box = await kept(house.server(), room, reaching(server, "a.test", "b.test"), server.port)
        reader, _ = await box.dial("b.test", server.port)
        old = {name: await box.resolve(name) for name in ("a.test", "b.test")}
        await reported(box, 1)
        narrowed = policy(f"a.test:{server.port}", hosts=["a.test", "b.test"])
        await box.session.change(narrowed)
        plugged_again = asyncio.Event()

        async def plug() -> None:
            await box.gate.plug(box.session.id, await asyncio.to_thread(room.listen, server.port))
            plugged_again.set()

        box.session.attend(plug)
        if server_too:
            await box.gate._kept[KEY].seal()
            kill(box.gate)
            box = await attached(house.server(), room, server.port)
        else:
            await killed(box.gate)
            async with asyncio.timeout(20):
                await plugged_again.wait()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        reader, writer = await box.connect(old["a.test"], server.port)
        writer.write(b"again\n")
        assert await reader.readline() == b"again\n", "an address of before still means the name"
        assert await box.resolve("a.test") == old["a.test"]
        with pytest.raises(LookupError):  # the change is in force
            await box.resolve("b.test")
        assert box.session.policy == narrowed
        rows = list((await box.close()).connections)
        assert {row.host for row in rows if row.allowed} == {"a.test", "b.test"}
        [lost] = [row for row in rows if row.via == "gate"]
        assert lost.reason.startswith("the gate was lost: its process ended")


async def test_addresses_of_a_lost_gate_are_not_given_again(house: House, rooms: Rooms) -> None:
    async with echoing() as server:
        names = [f"n{at}.test" for at in range(4)]
        room = rooms.room()
        box = await kept(house.server(), room, reaching(server, *names), server.port)
        assert box.gate._link is not None
        box.gate._link.hears.clear()  # the gate dies before it told of the name
        unknown = await box.resolve(names[0])
        await killed(box.gate)
        await box.gate.plug(box.session.id, await asyncio.to_thread(room.listen, server.port))
        assert unknown not in [await box.resolve(name) for name in names[1:]]
        with suppress(ConnectionResetError):  # the reset may come before connect() returns
            reader, _ = await box.connect(unknown, server.port)
            assert await cut_off(reader) == 0
        assert any("stands for no name" in row.reason for row in await box.log())


def secret(*hosts: str) -> GateSecret:
    return GateSecret("KEY", new_placeholder(), TOKEN, tuple(map(parse_rule, hosts)))


def asked(box: Plugged, address: str, outside: Outside, placeholder: str, trust: str) -> bytes:
    port = outside.https.port
    head = ("GET /echo HTTP/1.1", f"Host: api.test:{port}", "Connection: close", f"X-Key: {placeholder}", "", "")
    context = ssl.create_default_context(cadata=trust)
    with context.wrap_socket(box.room.dial(address, port), server_hostname="api.test") as sock:
        sock.sendall("\r\n".join(head).encode())
        return all_of(sock)


def secret_plan(outside: Outside, *secrets: GateSecret) -> EgressPlan:
    return EgressPlan(policy(f"api.test:{outside.https.port}", hosts=["api.test"]), EgressLimits(), secrets)


def own_certificate(box: Plugged) -> str:
    """What the sandbox trusts: the session's authority alone."""
    path = box.session.mounts[0].source.path
    assert path is not None
    text = path.read_text()
    return text[: text.index("-----END CERTIFICATE-----")] + "-----END CERTIFICATE-----\n"


async def test_secret_and_authority_survive(house: House, rooms: Rooms, outside: Outside) -> None:
    room, key, port = rooms.room(), secret(f"api.test:{outside.https.port}"), outside.https.port
    box = await kept(house.server(), room, secret_plan(outside, key), port)
    trust, address = own_certificate(box), await box.resolve("api.test")
    for at, turn in enumerate(("server", "gate", "both", "gate", "server")):
        assert b" 200 " in await asyncio.to_thread(asked, box, address, outside, key.placeholder, trust), turn
        await reported(box, at + 1)
        assert outside.seen[-1].headers["x-key"] == TOKEN
        if turn == "gate":
            await killed(box.gate)
            await box.gate.plug(box.session.id, await asyncio.to_thread(room.listen, port))
        else:
            if turn == "both":
                kill(box.gate)
            box = await attached(house.server(), room, port)
        assert own_certificate(box) == trust
        assert box.session.env["SSL_CERT_FILE"]
    told = await asyncio.to_thread(asked, box, address, outside, key.placeholder, trust)
    assert b" 200 " in told
    assert TOKEN.encode() not in told
    for path in house.home.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(word in content for word in (TOKEN.encode(), key.placeholder.encode(), b"PRIVATE KEY")), path
    log = await box.close()
    assert sum(row.count for row in log.connections if row.secrets == ("KEY",)) == 6
    assert sum(row.count for row in log.connections if row.via == "gate") == 3
    assert house.files() == []


async def test_a_session_that_is_opened_again_serves_both(house: House, rooms: Rooms, outside: Outside) -> None:
    """A server died before it knew that the program had started: the next one plans and opens again."""
    room, port = rooms.room(), outside.https.port
    old, new = secret(f"api.test:{port}"), secret(f"api.test:{port}")
    box = await kept(house.server(), room, secret_plan(outside, old), port)
    trust, address = own_certificate(box), await box.resolve("api.test")
    gate = house.server()
    session = await gate.open(KEY, secret_plan(outside, new), kept=True)
    assert session.id == box.session.id
    again = Plugged(gate, session, room)
    assert own_certificate(again) == trust
    for key in (old, new):
        assert b" 200 " in await asyncio.to_thread(asked, again, address, outside, key.placeholder, trust)
        assert outside.seen[-1].headers["x-key"] == TOKEN


async def test_limits_go_on_where_they_were(house: House, rooms: Rooms) -> None:
    async with echoing() as server:
        room = rooms.room()
        plan = reaching(server, "api.test", limits=EgressLimits(connections_total=3))
        box = await kept(house.server(), room, plan, server.port)
        for _ in range(2):
            assert await said(box, "api.test", server.port) == b"hello\n"
        await reported(box, 2)
        await killed(box.gate)
        await box.gate.plug(box.session.id, await asyncio.to_thread(room.listen, server.port))
        assert await said(box, "api.test", server.port) == b"hello\n"
        await turned_away(box, await box.resolve("api.test"), server.port)
        assert any("more than 3 connections" in row.reason for row in await box.log())


async def test_a_server_that_ends_in_order_leaves_its_kept_sessions(house: House, rooms: Rooms) -> None:
    async with echoing() as server:
        room = rooms.room()
        gate = house.server()
        box = await kept(gate, room, reaching(server, "api.test"), server.port)
        assert gate._link is not None
        pid = gate._link.pid
        await gate.close()
        assert _runs(pid)
        assert await said(box, "api.test", server.port) == b"hello\n"
        again = await attached(house.server(), room)
        await again.close()
        assert house.files() == []


async def test_a_gate_with_nothing_to_keep_ends_with_its_server(house: House) -> None:
    gate = house.server()
    session = await gate.open(KEY, EgressPlan(policy("*")), kept=True)
    await session.close()
    assert gate._link is not None
    pid = gate._link.pid
    gate._link.drop()
    async with asyncio.timeout(5):
        while _runs(pid):
            await asyncio.sleep(0.01)


async def test_without_a_key_nothing_is_kept(house: House, outside: Outside) -> None:
    class Nowhere(GivenKeys):
        def read(self) -> list[Key]:
            raise StoreFault("the key file /nowhere is missing")

    gate = house.server(Nowhere("A" * 43 + "="))
    for plan in (secret_plan(outside, secret("api.test")), EgressPlan(policy("*"))):
        with pytest.raises(GateFault, match="cannot be kept: the key file /nowhere is missing"):
            await gate.open(KEY, plan, kept=True)
    assert house.files() == []
    assert list(await gate.held()) == []
    await (await gate.open(KEY, secret_plan(outside, secret("api.test")))).close()


async def test_a_stolen_directory_opens_nothing(house: House, outside: Outside, tmp_path: Path) -> None:
    await house.server().open(KEY, secret_plan(outside, secret("api.test")), kept=True)
    thief = House(tmp_path / "stolen", None)
    thief.home.mkdir()
    (tmp_path / "sessions").rename(tmp_path / "stolen" / "sessions")
    gate = thief.server()
    with pytest.raises(GateFault, match=r"cannot be had again: the key of .* is missing"):
        await gate.attach(KEY)
    await thief.close()


async def test_what_nobody_knows_is_swept(house: House, outside: Outside) -> None:
    for kill_gate in (False, True):
        gate = house.server()
        await gate.open(KEY, secret_plan(outside, secret("api.test")), kept=True)
        if kill_gate:
            kill(gate)
        gate = house.server()
        assert set(await gate.held()) == {KEY}
        for _ in range(2):
            await gate.discard(KEY)
        assert list(await gate.held()) == []
        assert house.files() == []
        with pytest.raises(GateFault, match="keeps no session"):
            await gate.attach(KEY)


async def test_there_is_one_gate_and_it_serves_one_server(house: House) -> None:
    first = house.server()
    await first.open(KEY, EgressPlan(policy("*")), kept=True)
    store = SealedSessions(house.home / "sessions", OwnKeyFile(house.home / "key", house.home / "sealed"))
    second = ProcessGate(house.home / "gate", uid=GATE_UID, sessions=store)
    asking = asyncio.ensure_future(second.start())
    done, _ = await asyncio.wait([asking], timeout=0.3)
    assert not done, "it waits for the first server to be gone"
    assert first._link is not None
    pid = first._link.pid
    first._link.drop()
    async with asyncio.timeout(20):
        await asking
    assert second._link is not None
    assert second._link.pid == pid
    second._link.drop()


async def test_a_gate_that_ends_meanwhile_is_replaced(house: House, rooms: Rooms, outside: Outside) -> None:
    """Killed before its server has noticed: while a session is opened, plugged or attached."""
    gate, room, port = house.server(), rooms.room(), outside.https.port
    await gate.start()
    kill(gate)
    session = await gate.open(KEY, secret_plan(outside, secret("api.test")), kept=True)
    kill(gate)
    await gate.plug(session.id, await asyncio.to_thread(room.listen, port))
    gate = house.server()
    await gate.start()
    kill(gate)
    assert (await attached(gate, room, port)).session.id == session.id
    assert gate.served(session.id)
    assert house.faults == []


async def test_many_sessions_go_on(house: House, rooms: Rooms) -> None:
    async with echoing() as server:
        gate = house.server()
        boxes = []
        for at in range(6):
            room = rooms.room()
            session = await gate.open(f"run_{at}", reaching(server, "api.test"), kept=True)
            await gate.plug(session.id, await asyncio.to_thread(room.listen, server.port))
            boxes.append(remembered(Plugged(gate, session, room)))

            def again(room: Room = room, id: str = session.id) -> Callable[..., object]:
                async def plug() -> None:
                    await gate.plug(id, await asyncio.to_thread(room.listen, server.port))

                return plug

            session.attend(again())  # type: ignore[arg-type]
        await killed(gate)
        await until(lambda: all(gate.served(box.session.id) for box in boxes))
        for box in boxes:
            assert await said(box, "api.test", server.port) == b"hello\n"
            await box.close()
        assert house.files() == []
        assert house.faults == []


@pytest.mark.parametrize("kind", [EndpointKind.UNIX, EndpointKind.TCP], ids=lambda kind: kind.value)
async def test_endpoints_go_on(house: House, kind: EndpointKind) -> None:
    async with echoing() as server:
        gate = house.server()
        session = await gate.open(KEY, reaching(server, "api.test"), kept=True)
        endpoint = await gate.endpoint(KEY, kind)
        target = f"api.test:{server.port}"
        for turn in ("server", "gate", "both"):
            assert (await asyncio.to_thread(http, endpoint, target)).endswith(b"hello\n"), turn
            if turn == "gate":
                await killed(gate)
            else:
                if turn == "both":
                    kill(gate)
                gate = house.server()
                session = await gate.attach(KEY)
            if kind is EndpointKind.UNIX:
                assert await gate.way(session.id) == endpoint, "a backend finds the same one again"
        assert (await asyncio.to_thread(http, endpoint, target)).endswith(b"hello\n")
        assert b" 407 " in await asyncio.to_thread(http, endpoint, target, "x")
        await session.close()
        assert house.files() == []
        await until(lambda: closed(endpoint))


class Stubborn(OwnKeyFile):
    """Keys that are not to be had for a while."""

    lost = False

    def read(self) -> list[Key]:
        if self.lost:
            raise StoreFault("the key file is missing")
        return super().read()

    def sealing(self) -> Key:
        if self.lost:
            raise StoreFault("the key file is missing")
        return super().sealing()


async def test_a_session_that_could_not_go_on_does_later(house: House, rooms: Rooms) -> None:
    async with echoing() as server:
        keys = Stubborn(house.home / "key", house.home / "sealed")
        room = rooms.room()
        box = await kept(house.server(keys), room, reaching(server, "api.test"), server.port)

        async def plug() -> None:
            await box.gate.plug(box.session.id, await asyncio.to_thread(room.listen, server.port))

        box.session.attend(plug)
        keys.lost = True
        await killed(box.gate)
        assert "a detached run is without a network" in house.faults[-1]
        assert refuses(room, server.port), "closed, not open"
        with pytest.raises(GateFault, match="cannot be kept"):
            await box.session.change(policy())
        keys.lost = False
        assert any(row.via == "gate" for row in await box.log())
        assert await said(box, "api.test", server.port) == b"hello\n"
