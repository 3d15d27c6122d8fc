"""What a dead server left is settled at the start, and what time has overtaken is swept away."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from skillyard.domain.errors import SkillyardError
from skillyard.domain.outcome import Outcome
from skillyard.domain.run import RunRecord, RunStatus
from skillyard.domain.sandbox import Held, Owner
from skillyard.engine.failure import Failure
from skillyard.engine.observer import Fault, Recovered, Swept
from skillyard.ports.sandbox import Backend

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine

STRAY_AFTER_S = 60.0
LOST = Failure("SandboxLost", "the server ended while the run was going on", Outcome.LOST)


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
        reason=failure.message[:1000],
        ended_at=now,
        summary=failure.summary(),
        error=failure.as_dict(),
    )


async def sweep(engine: Engine) -> Swept:
    """Remove expired blobs, old records, and sandboxes that no run of ours has."""
    blobs = await engine.blobs.sweep()
    ttl = engine.config.record_ttl_s
    records = await engine.records.sweep(engine.clock.now() - ttl) if ttl is not None else 0
    return Swept(blobs, records, await _destroy_strays(engine))


async def _destroy_strays(engine: Engine) -> int:
    """Sandboxes whose destruction failed at the time. A young one may belong to a run that is just ending."""
    held = [(b, s) for b, s in await _survey(engine) if s.owner is Owner.RUN and s.age_s > STRAY_AFTER_S]
    return await _destroy(held, engine.active)


async def sweep_forever(engine: Engine) -> None:
    """One pass at once, then one each ``sweep_every_s``."""
    while True:
        try:
            swept = await sweep(engine)
            if swept.blobs or swept.records or swept.sandboxes:
                engine.emit(swept)
        except SkillyardError as error:
            engine.emit(Fault("sweep", error))
        await asyncio.sleep(engine.config.sweep_every_s)
