"""Kept sessions of a gate of another version: an older one's go on in a new gate, a newer one is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.errors import GateFault
from skillyard.domain.network.session import EgressPlan
from skillyard.gate.client_session import KeptSession, state_out
from skillyard.gate.wire import PROTOCOL, state_in
from skillyard.own_process import command_of
from tests.conformance.gate.gates import policy, reaching
from tests.conformance.gate.house import House
from tests.conformance.gate.rooms import Rooms
from tests.conformance.gate.test_gate_process import _runs
from tests.conformance.gate.test_kept import KEY, attached, closed_whole, echoing, kept, kill, said

pytestmark = pytest.mark.anyio


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House(tmp_path, None)
    yield house
    await closed_whole(house)


async def test_a_newer_gate_is_refused(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.server().open(KEY, EgressPlan(policy("*")), kept=True)
    monkeypatch.setattr("skillyard.gate.link.PROTOCOL", 0)
    with pytest.raises(GateFault, match=f"speaks version {PROTOCOL} of its protocol, and this server 0"):
        await house.server().start()
    monkeypatch.undo()


def older_command(program: str, needs: Iterable[str], config: Mapping[str, Any]) -> list[str]:
    """Returns the command of a gate that says that it is of the version before."""
    *words, code, roots, name, told = command_of(program, needs, config)
    begin, found, end = code.partition("import_module(sys.argv[2])")
    assert found
    return [*words, f"{begin}gate = {found}; gate.PROTOCOL -= 1; gate{end}", roots, name, told]


async def test_sessions_of_an_older_gate_go_on_in_a_new_one(
    house: House, rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with echoing() as server:
        room, version = rooms.room(), PROTOCOL - 1
        with monkeypatch.context() as earlier:
            earlier.setattr("skillyard.gate.link.command_of", older_command)
            for user in ("link", "client", "client_session"):
                earlier.setattr(f"skillyard.gate.{user}.PROTOCOL", version)
            box = await kept(house.server(), room, reaching(server, "a.test"), server.port)
            address = await box.resolve("a.test")
            assert await said(box, "a.test", server.port) == b"hello\n"
            assert box.gate._link is not None
            assert box.gate._link.version == version
            older = box.gate._link.pid
        monkeypatch.setattr("skillyard.gate.wire.STEPS", {version: lambda state: {**state, "stepped": True}})
        box = await attached(house.server(), room, server.port)
        assert not _runs(older)
        assert await box.resolve("a.test") == address
        assert await said(box, "a.test", server.port) == b"hello\n"
        rows = (await box.close()).connections
    assert sum(row.count for row in rows if row.allowed) == 2, "what the older gate saw is in the log"
    [lost] = [row for row in rows if row.via == "gate"]
    assert f"it was of version {version}, its server is of version {PROTOCOL}" in lost.reason
    [told] = house.told
    assert "a session of a detached run goes on" in told


def test_a_sealed_state_is_brought_to_this_version(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {number: lambda state, number=number: {"by": [*state["by"], number]} for number in range(PROTOCOL + 1)}
    monkeypatch.setattr("skillyard.gate.wire.STEPS", steps)
    assert state_in({"by": []}, PROTOCOL) == {"by": []}
    assert state_in({"by": []}, 0) == {"by": list(range(PROTOCOL))}


async def test_a_state_that_a_newer_release_sealed_is_refused(house: House) -> None:
    gate = house.server()
    session = await gate.open(KEY, EgressPlan(policy("*")), kept=True)
    assert isinstance(session, KeptSession)
    await session._store.put(KEY, state_out(session.id, session._state, PROTOCOL + 1))
    kill(gate)
    with pytest.raises(GateFault, match=f"a newer release sealed the session of '{KEY}'"):
        await house.server().attach(KEY)
