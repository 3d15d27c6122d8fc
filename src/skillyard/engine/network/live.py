"""Changing what a run at work may reach, and keeping what it tried where a crash does not take it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from skillyard.domain.errors import GateFault, InvalidInput, RunNotFound, SandboxGone
from skillyard.domain.network.policy import is_open, parse_rules
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.work.record import RunRecord, RunStatus
from skillyard.engine.method import OBJECT, RUN_ID, Method, answer, obj
from skillyard.engine.network.run_network import RunNetwork
from skillyard.engine.observer import Fault, NetworkChanged
from skillyard.engine.runs.active import ActiveRun
from skillyard.engine.runs.history_methods import owned_run, shown
from skillyard.engine.runs.methods import NETWORK

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine

KEEP_EVERY_S = 5.0


async def set_run_network(engine: Engine, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    run_id = params["run_id"]
    network = _network_of(engine, await owned_run(engine, principal, run_id))
    rules = parse_rules(params["network"])
    if is_open(rules) and not engine.config.network.open:
        raise InvalidInput("network", "asks for every host, and the operator has not consented to that (network.open)")
    try:
        change = await network.change(
            rules, by=principal.name, at=engine.clock.now(), replaces=Scope.ADMIN in principal.scopes
        )
    except SandboxGone:
        raise _ended() from None
    await _keep(engine, run_id, network)
    engine.emit(NetworkChanged(run_id, principal.name, change.layer, change.rules))
    return {"run": await shown(engine, await owned_run(engine, principal, run_id))}


def _network_of(engine: Engine, record: RunRecord) -> RunNetwork:
    active = engine.active.get(record.run_id)
    if active is None or record.status is not RunStatus.RUNNING:
        raise _ended()
    if active.network is None:
        raise InvalidInput("run_id", "must be of a run that was started with a network: this one has none")
    return active.network


def _ended() -> InvalidInput:
    return InvalidInput("run_id", "must be of a run that is going on: this one has ended")


async def keep_forever(engine: Engine) -> None:
    """Write down now and then what runs at work have tried."""
    kept: dict[str, Any] = {}
    while True:
        await asyncio.sleep(KEEP_EVERY_S)
        at_work = [active for active in engine.active.values() if active.network is not None]
        kept = {active.run_id: await _kept(engine, active, kept.get(active.run_id)) for active in at_work}


async def _kept(engine: Engine, active: ActiveRun, before: Any) -> Any:
    assert active.network is not None
    try:
        told = await active.network.so_far()
        if told != before:
            await _keep(engine, active.run_id, active.network)
    except Exception as error:  # noqa: BLE001 - the other runs' logs are kept all the same
        engine.emit(Fault("network", error, active.run_id))
        return before
    return told


async def _keep(engine: Engine, run_id: str, network: RunNetwork) -> None:
    record = await engine.records.get(run_id)
    if record is not None and record.status is RunStatus.RUNNING:
        await engine.records.update_running(replace(record, network=await network.so_far()))


TABLE = (
    Method(
        name="runs.set_network",
        doc=(
            "Change what a run at work may reach, for open connections too. Rules of its owner narrow what was granted;"
            " those of an admin take its place below the operator's rules."
        ),
        params=obj({"run_id": RUN_ID, "network": NETWORK}, "run_id", "network"),
        result=answer({"run": OBJECT}, "run"),
        errors=(RunNotFound, GateFault),
        handler=set_run_network,
        scope=Scope.EXECUTE,
        also=frozenset({Scope.RUN_CODE}),
        surface="operator",
    ),
)
