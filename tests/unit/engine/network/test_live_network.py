"""What a run at work may reach is changed: by whom, how far, and what the record says of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from skillyard.domain.errors import GateFault, InvalidInput, RunNotFound
from skillyard.domain.network.rule import parse_rule
from skillyard.domain.principal import ALL_SCOPES, Principal, Scope
from skillyard.engine.observer import Fault, NetworkChanged
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.conftest import Rig
from tests.unit.engine.network.fake_gate import FakeGate

pytestmark = pytest.mark.anyio

OWNER = Principal("alice", ALL_SCOPES - {Scope.ADMIN})
STRANGER = Principal("mallory", ALL_SCOPES - {Scope.ADMIN})
ADMIN = Principal("root")


def rules(*texts: str) -> Any:
    return tuple(map(parse_rule, texts))


async def waiting(process: TwinProcess) -> None:
    await process.ended


@asynccontextmanager
async def at_work(rig: Rig, **params: Any) -> AsyncIterator[str]:
    """A run of alice's until the block ends."""
    rig.principal = OWNER
    task = asyncio.create_task(rig.run(waiting, **params))
    async with asyncio.timeout(10):
        while not rig.backend.started:
            await asyncio.sleep(0)
    [run_id] = rig.app.active
    try:
        yield run_id
    finally:
        rig.backend.started.clear()
        await rig.app.runs.cancel(run_id, "enough")
        await task


def in_force(gate: FakeGate) -> list[tuple[str, list[str]]]:
    return [(layer.name, layer.texts()) for layer in gate.last.policy.layers]


async def change(rig: Rig, run_id: str, *network: str, by: Principal = OWNER) -> dict[str, Any]:
    run: dict[str, Any] = (await rig.call("runs.set_network", by, run_id=run_id, network=list(network)))["run"]
    return run


async def test_an_owner_narrows_and_goes_back_to_what_was_granted(rig: Rig) -> None:
    gate = rig.with_network(run_code=rules("x.com", "y.com"))
    async with at_work(rig, network=["x.com", "y.com"]) as run_id:
        granted = in_force(gate)
        run = await change(rig, run_id, "x.com", "z.com")
        assert in_force(gate) == [*granted, ("live", ["x.com", "z.com"])]
        assert [gate.last.connect(host, 443) for host in ("x.com", "y.com", "z.com")] == [True, False, False]
        assert run["network"]["changes"][0]["by"] == "alice"
        await change(rig, run_id, "y.com")
        assert in_force(gate) == [*granted, ("live", ["y.com"])]
        await change(rig, run_id)
        assert gate.last.policy.nothing


async def test_an_admin_replaces_what_was_granted_below_the_operators_rules(rig: Rig) -> None:
    gate = rig.with_network(run_code=rules("x.com"), rules=rules("*", "!evil.com"))
    async with at_work(rig) as run_id:
        await change(rig, run_id, "z.com:8443", "evil.com", by=ADMIN)
        assert in_force(gate) == [("operator", ["*", "!evil.com"]), ("admin", ["z.com:8443", "evil.com"])]
        assert gate.last.connect("z.com", 8443)
        assert not gate.last.connect("evil.com", 443)
        [sandbox] = rig.backend.held.values()
        assert [egress.ports for egress in sandbox.plugged] == [(80, 443, 8443)]
        assert sandbox.plugged[0].session == gate.last.id
        await change(rig, run_id, "z.com:8443", by=OWNER)
        assert in_force(gate)[1:] == [("admin", ["z.com:8443", "evil.com"]), ("live", ["z.com:8443"])]
        assert len(sandbox.plugged) == 1


async def test_every_host_needs_consent_here_too(rig: Rig) -> None:
    rig.with_network(run_code=rules("x.com"))
    async with at_work(rig) as run_id:
        for by in (OWNER, ADMIN):
            with pytest.raises(InvalidInput, match=r"network: asks for every host.*network\.open"):
                await change(rig, run_id, "*", by=by)


async def test_what_is_not_yours_is_not_there(rig: Rig) -> None:
    gate = rig.with_network(run_code=rules("x.com"))
    async with at_work(rig) as run_id:
        said = []
        for asked in (run_id, "run_0000"):
            with pytest.raises(RunNotFound) as raised:
                await change(rig, asked, by=STRANGER)
            said.append(str(raised.value).replace(asked, "RUN"))
        assert said[0] == said[1]
        assert not gate.last.policy.nothing


async def test_only_while_it_runs_and_only_with_a_network(rig: Rig) -> None:
    rig.with_network(run_code=rules("x.com"))
    async with at_work(rig) as run_id:
        pass
    with pytest.raises(InvalidInput, match="run_id: must be of a run that is going on"):
        await change(rig, run_id, "x.com")
    async with at_work(rig, network=[]) as run_id:
        with pytest.raises(InvalidInput, match="run_id: must be of a run that was started with a network"):
            await change(rig, run_id, "x.com", by=ADMIN)


async def test_the_record_says_who_changed_what_and_when(rig: Rig) -> None:
    gate = rig.with_network(run_code=rules("x.com"))
    async with at_work(rig) as run_id:
        rig.clock.time += 5
        await change(rig, run_id, by=OWNER)
        [running] = await rig.app.ports.records.unfinished()
        assert running.network is not None
        assert running.network["changes"][0]["layer"] == "live"
        assert running.network["in_force"][-1] == {"name": "live", "rules": []}
        rig.clock.time += 5
        await change(rig, run_id, "y.com", by=ADMIN)
        gate.last.connect("y.com", 443)
    record = await rig.app.ports.records.get(run_id)
    assert record is not None
    assert record.network is not None
    assert record.network["layers"][1] == {"name": "code", "rules": ["x.com"]}
    told = [(c["by"], c["at"] - record.created_at, c["layer"], c["rules"]) for c in record.network["changes"]]
    assert told == [("alice", 5, "live", []), ("root", 10, "admin", ["y.com"])]
    assert [layer["name"] for layer in record.network["in_force"]] == ["operator", "admin"]
    assert record.network["connections"][0]["layer"] == "admin"
    assert rig.of(NetworkChanged)[1] == NetworkChanged(run_id, "root", "admin", ("y.com",))


async def test_what_changes_take_of_a_record_is_bounded(rig: Rig) -> None:
    gate = rig.with_network(run_code=rules("x.com"))
    long = [f"{'a' * 60}.{'b' * 60}.{'c' * 60}{number}.com" for number in range(250)]
    async with at_work(rig) as run_id:
        for number in range(1, 6):
            await change(rig, run_id, f"x{number}.com", *long[number:])
        with pytest.raises(InvalidInput, match="network: one run's can be changed at most"):
            await change(rig, run_id, *long)
        await change(rig, run_id)
        await change(rig, run_id)
        assert gate.last.policy.nothing, "taking it all away is always possible"
        assert len((await rig.call("runs.show", run_id=run_id))["run"]["network"]["changes"]) == 6


async def test_a_gate_that_does_not_change_is_an_error_and_no_change(rig: Rig) -> None:
    gate = rig.with_network(run_code=rules("x.com"))
    async with at_work(rig) as run_id:
        gate.down = True
        with pytest.raises(GateFault):
            await change(rig, run_id)
        gate.down = False
        assert (await rig.call("runs.show", run_id=run_id))["run"]["network"]["changes"] == []


async def test_what_was_tried_is_written_down_while_a_run_goes_on(rig: Rig) -> None:
    gate = rig.with_network(run_code=rules("x.com"))
    async with at_work(rig):
        gate.down = True
        gate.last.connect("y.com", 443)
        await rig.app.history.keep_networks()
        gate.down = False
        await rig.app.history.keep_networks()
        [record] = await rig.app.ports.records.unfinished()
        assert record.network is not None
        assert record.network["connections"]
    assert record.network["connections"][0]["host"] == "y.com"
    assert rig.of(Fault) == []
