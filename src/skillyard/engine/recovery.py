"""What a dead server left is settled at the start, and what time has overtaken is swept away."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from skillyard.domain.errors import SkillyardError
from skillyard.domain.sandbox.spec import Held, Owner
from skillyard.domain.work.outcome import Outcome
from skillyard.domain.work.record import RunRecord, RunStatus
from skillyard.engine.clock_watch import ClockWatch
from skillyard.engine.observer import Fault, Recovered, Swept
from skillyard.engine.runs.failure import Failure
from skillyard.ports.sandbox import Backend

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine

STRAY_AFTER_S = 60.0
_WAITS = "nothing is taken for expired before the next sweep"
LOST = Failure("SandboxLost", "the server ended while the run was going on", Outcome.LOST)

UNRECORDED = Failure("SandboxLost", "the run is over, and how it ended could not be recorded", Outcome.LOST)


class ClockJumped(SkillyardError):
    """The wall clock was set while the server worked."""

    type = "ClockJumped"


async def recover(engine: Engine) -> None:
    """Runs of a dead server are lost and their sandboxes destroyed. A sandbox that was made to outlive the
    server stays, with its record, while that record says that it works."""
    held = await _survey(engine)
    kept_keys = {sandbox.key for _, sandbox in held if sandbox.owner is Owner.TASK}
    unfinished = await engine.records.unfinished()
    destroyed = await _destroy(held, {r.run_id for r in unfinished if r.run_id in kept_keys})
    lost = 0
    for record in unfinished:
        if record.run_id not in kept_keys:
            lost += await engine.records.finish(ended(record, LOST, engine.clock.now()))
    if lost or destroyed:
        engine.emit(Recovered(lost, destroyed))


async def _survey(engine: Engine) -> list[tuple[Backend, Held]]:
    return [(backend, held) for backend in engine.backends for held in await backend.survey()]


async def _destroy(held: Iterable[tuple[Backend, Held]], known: Collection[str]) -> int:
    strays = [(backend, sandbox) for backend, sandbox in held if sandbox.key not in known]
    for backend, sandbox in strays:
        await backend.destroy(sandbox.handle)
    return len(strays)


def ended(record: RunRecord, failure: Failure, now: float) -> RunRecord:
    """The record of a run that failed without having been executed to its end."""
    return replace(
        record,
        status=RunStatus.FAILED,
        outcome=failure.outcome,
        reason=failure.reason(),
        ended_at=now,
        summary=failure.summary(),
        error=failure.as_dict(),
    )


async def sweep(engine: Engine, *, expire: bool = True) -> Swept:
    """Remove sandboxes that no run of ours has; with ``expire``, expired blobs and old records too."""
    now, ttl = engine.clock.now(), engine.config.records.ttl_s
    strays = await _destroy_strays(engine)
    most = engine.config.records.owner_count
    records = await engine.records.trim(most) if most is not None else 0
    if not expire:
        return Swept(0, records, strays)
    blobs = await engine.blobs.sweep()
    records += await engine.records.sweep(now - ttl) if ttl is not None else 0
    if engine.config.secrets.audit_ttl_s is not None:
        await engine.secret_book.audit.sweep(now - engine.config.secrets.audit_ttl_s)
    environments = await engine.environments.evict(await environments_in_use(engine))
    return Swept(blobs, records, strays, environments)


async def environments_in_use(engine: Engine) -> set[str]:
    """By what works on since an earlier server, too."""
    return {str(record.digests.get("environment", "")) for record in await engine.records.unfinished()}


async def settle(engine: Engine) -> None:
    """Ends the records of runs that are over and could not be recorded so, since the disk was full, say."""
    unfinished = await engine.records.unfinished()
    over = [record for record in unfinished if record.run_id not in engine.active]
    if not over:
        return
    kept = {sandbox.key for _, sandbox in await _survey(engine) if sandbox.owner is Owner.TASK}
    lost = 0
    for record in over:
        if record.run_id not in kept:
            lost += await engine.records.finish(ended(record, UNRECORDED, engine.clock.now()))
    if lost:
        engine.emit(Recovered(lost, 0))


async def _destroy_strays(engine: Engine) -> int:
    """Sandboxes whose destruction failed at the time. A young one may belong to a run that is just ending."""
    held = [(b, s) for b, s in await _survey(engine) if s.owner is Owner.RUN and s.age_s > STRAY_AFTER_S]
    return await _destroy(held, engine.active.keys() | engine.environments.building.sandboxes)


async def sweep_forever(engine: Engine) -> None:
    """One pass at once, then one each ``sweep_every_s``."""
    watch, first = ClockWatch(engine.clock), True
    while True:
        try:
            if not first:  # the start has just done that
                await settle(engine)
            first, jumped_s = False, watch.jumped_s()
            if jumped_s:
                engine.emit(Fault("sweep", ClockJumped(f"the clock was set forward by {jumped_s:.0f} s: {_WAITS}")))
            swept = await sweep(engine, expire=not jumped_s)
            if swept.blobs or swept.records or swept.sandboxes or swept.environments:
                engine.emit(swept)
        except Exception as error:  # noqa: BLE001 - the next sweep comes all the same
            engine.emit(Fault("sweep", error))
        await asyncio.sleep(engine.config.sweep_every_s)
