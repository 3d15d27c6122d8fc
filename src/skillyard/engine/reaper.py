"""The sweep over deadlines, leases and surveys.

It settles what a dead server left and removes what has expired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Protocol

from skillyard.domain.errors import BackendAway, SandboxFault, SkillyardError
from skillyard.domain.sandbox.spec import Held, Owner
from skillyard.domain.work.record import Outcome, RunRecord
from skillyard.engine.observer import Fault, Observer, Recovered, Swept
from skillyard.engine.runs.failure import Failure
from skillyard.engine.runs.record import ended
from skillyard.engine.secrets.service import SecretBook
from skillyard.ports.blobs import BlobStore
from skillyard.ports.clock import Clock
from skillyard.ports.gate import Gate
from skillyard.ports.records import JobStore, RecordStore
from skillyard.ports.sandbox import Backend, Remote
from skillyard.values import dataclass

STRAY_AFTER_S = 60.0
JUMP_S = 3600.0
"""Further than any clock drifts between two looks. A machine that slept looks the same: it only sweeps later."""
_WAITS = "nothing is taken for expired before the next sweep"
LOST = Failure("SandboxLost", "the server ended while the run was going on", Outcome.LOST)
UNRECORDED = Failure("SandboxLost", "the run is over, and how it ended could not be recorded", Outcome.LOST)


class ClockJumped(SkillyardError):
    """The wall clock was set while the server worked."""

    type = "ClockJumped"


@dataclass(frozen=True, slots=True)
class Ages:
    """How long things are kept, in seconds; None for ever.

    ``owner_records`` are the ended runs that are kept of one principal, and ``made_bytes`` what their blobs take.
    """

    records_s: float | None
    audit_s: float | None
    owner_records: int | None
    made_bytes: int | None
    sweep_every_s: float


class Environments(Protocol):
    """The environments that are removed when nobody used them for long."""

    async def evict(self, in_use: Collection[str] = ()) -> int: ...


class Resumer(Protocol):
    """Goes on with runs that outlive their servers."""

    async def resume(self, records: Iterable[RunRecord], *, alone: bool) -> int: ...


class Sessions(Protocol):
    """The sandboxes that are kept for sessions."""

    async def keys(self) -> Collection[str]: ...

    async def recover(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Kept:
    """Everything that outlives a server."""

    runs: Resumer
    sessions: Sessions
    jobs: JobStore


class Reaper:
    """Settles and sweeps. ``at_work`` tells the keys of the sandboxes that are in use."""

    def __init__(
        self,
        backends: Iterable[Backend],
        records: RecordStore,
        blobs: BlobStore,
        secrets: SecretBook,
        environments: Environments,
        at_work: Callable[[], Collection[str]],
        kept: Kept,
        gate: Gate | None,
        clock: Clock,
        emit: Observer,
        ages: Ages,
    ) -> None:
        self._backends = backends
        self._records = records
        self._blobs = blobs
        self._secrets = secrets.store
        self._audit = secrets.audit
        self._environments = environments
        self._at_work = at_work
        self._resumer, self._sessions, self._jobs = kept.runs, kept.sessions, kept.jobs
        self._gate = gate
        self._clock = clock
        self._emit = emit
        self._ages = ages
        self._seen: tuple[float, float] | None = None
        self._began = clock.monotonic()
        self.unsettled: dict[str, str] = {}
        """Backends that were away when this server began, each with why. They may hold what an earlier one left."""

    async def recover(self) -> None:
        """Settles what an earlier server left, which is dead.

        Its own runs are lost and their sandboxes destroyed. Those that outlive it are resumed.
        """
        unfinished = await self._records.unfinished()
        kept = _kept(unfinished)
        destroyed = await _destroy(await self._survey(self.unsettled), kept | set(await self._sessions.keys()))
        await self._discard_sessions(kept)
        await self._forget_secrets()
        lost = await self._finish((record for record in unfinished if record.owner is Owner.RUN), LOST)
        await self._sessions.recover()
        resumed = await self._resume(unfinished, alone=True)
        if lost or destroyed or resumed:
            self._emit(Recovered(lost, destroyed, resumed))

    async def settle_returned(self, name: str) -> None:
        """Settles what an earlier server left in a backend that was away at the start. Raises SandboxFault."""
        if name not in self.unsettled:
            return
        (backend,) = (one for one in self._backends if one.name == name)
        held = await backend.survey()  # before the live ones are read: a sandbox of this server is one's of those
        age_s = self._clock.monotonic() - self._began
        unfinished = await self._records.unfinished()
        known = {*self._at_work(), *_kept(unfinished), *await self._sessions.keys()}
        destroyed = await _destroy([(backend, one) for one in held if one.age_s > age_s], known)
        self.unsettled.pop(name, None)
        resumed = await self._resume((record for record in unfinished if record.isolation == name), alone=True)
        if destroyed or resumed:
            self._emit(Recovered(0, destroyed, resumed))

    async def settle(self) -> None:
        """Settles runs that nobody drives.

        Those that are over, and whose end could not be written, get their end; those that outlive servers go on.
        """
        at_work = self._at_work()
        over = [record for record in await self._records.unfinished() if record.run_id not in at_work]
        lost = await self._finish((record for record in over if record.owner is Owner.RUN), UNRECORDED)
        resumed = await self._resume(over, alone=False)
        if lost or resumed:
            self._emit(Recovered(lost, 0, resumed))

    async def _resume(self, records: Iterable[RunRecord], *, alone: bool) -> int:
        """Those in a backend that is away wait for it."""
        here = (r for r in records if r.owner is Owner.TASK and r.isolation not in self.unsettled)
        return await self._resumer.resume(here, alone=alone)

    async def _discard_sessions(self, kept: Collection[str]) -> None:
        """Ends sessions of the gate whose runs have ended."""
        if self._gate is None:
            return
        try:
            for key in await self._gate.held():
                if key not in kept:
                    await self._gate.discard(key)
        except SkillyardError as error:  # the next start tries again
            self._emit(Fault("gate", error))

    async def _forget_secrets(self) -> None:
        """Erases the secret values that were kept for runs that have ended."""
        try:
            if keeping := await self._secrets.keeping():
                # Read later: a run or session that keeps values is live before.
                live = _kept(await self._records.unfinished())
                live |= {key.rpartition("-")[0] for key in await self._sessions.keys()}
                for run_id in keeping:
                    if run_id not in live:
                        await self._secrets.forget(run_id)
        except SkillyardError as error:  # the next sweep tries again
            self._emit(Fault("secrets", error))

    async def sweep(self, *, expire: bool = True) -> Swept:
        """Removes sandboxes that nobody uses; with ``expire``, expired blobs and old records too."""
        now, ages = self._clock.now(), self._ages
        strays = await self._destroy_strays()
        await self._forget_secrets()
        records = 0
        if ages.owner_records is not None:
            records = await self._records.trim(ages.owner_records) + await self._jobs.trim(ages.owner_records)
        if not expire:
            return Swept(0, records, strays)
        blobs = await self._blobs.sweep()
        if ages.made_bytes is not None:
            blobs += await self._blobs.trim(ages.made_bytes, now, await self._needed())
        if ages.records_s is not None:
            oldest = now - ages.records_s
            records += await self._records.sweep(oldest) + await self._jobs.sweep(oldest)
        if ages.audit_s is not None:
            await self._audit.sweep(now - ages.audit_s)
        environments = await self._environments.evict(await environments_in_use(self._records))
        return Swept(blobs, records, strays, environments)

    async def _needed(self) -> set[str]:
        """Returns the unfinished runs, and the steps of unfinished jobs, which may name blobs."""
        runs = {record.run_id for record in await self._records.unfinished()}
        return runs | {step.task_id for job in await self._jobs.live() for step in job.steps if step.task_id}

    async def sweep_forever(self) -> None:
        """One pass at once, then one each ``sweep_every_s``."""
        first = True
        while True:
            try:
                if not first:  # the start has just done that
                    await self.settle()
                first = False
                await self._sweep_and_tell()
            except Exception as error:  # noqa: BLE001 - the next sweep comes all the same
                self._emit(Fault("sweep", error))
            await asyncio.sleep(self._ages.sweep_every_s)

    async def _sweep_and_tell(self) -> None:
        jumped_s = self._jumped_s()
        if jumped_s:
            self._emit(Fault("sweep", ClockJumped(f"the clock was set forward by {jumped_s:.0f} s: {_WAITS}")))
        swept = await self.sweep(expire=not jumped_s)
        if swept.blobs or swept.records or swept.sandboxes or swept.environments:
            self._emit(swept)

    def _jumped_s(self) -> float:
        """Returns the seconds by which somebody set the wall clock forward since the last look.

        Things that only look old by such a jump are not old.
        """
        now = self._clock.now(), self._clock.monotonic()
        before, self._seen = self._seen or now, now
        ahead = (now[0] - before[0]) - (now[1] - before[1])
        return ahead if ahead > JUMP_S else 0.0

    async def _finish(self, records: Iterable[RunRecord], why: Failure) -> int:
        return sum([await self._records.finish(ended(record, why, self._clock.now())) for record in records])

    async def _survey(self, away: dict[str, str]) -> list[tuple[Backend, Held]]:
        """Returns the sandboxes of all backends.

        Those that are away, or whose engine or server refuses us, are added to ``away``.
        """
        found: list[tuple[Backend, Held]] = []
        for backend in self._backends:
            try:
                found += [(backend, held) for held in await backend.survey()]
            except SandboxFault as error:
                if not isinstance(error, BackendAway) and not isinstance(backend, Remote):
                    raise
                away[backend.name] = error.message
        return found

    async def _destroy_strays(self) -> int:
        """Sandboxes whose destruction failed at the time. A young one may belong to a run that is just ending."""
        held = [(backend, sandbox) for backend, sandbox in await self._survey({}) if sandbox.age_s > STRAY_AFTER_S]
        known = set(self._at_work())
        if any(sandbox.owner is Owner.TASK for _, sandbox in held):
            known |= _kept(await self._records.unfinished()) | set(await self._sessions.keys())
        return await _destroy(held, known)


async def repeat(work: Callable[[], Awaitable[None]], every_s: float) -> None:
    """Does ``work``, which tells of its own faults, each ``every_s`` seconds."""
    while True:
        await asyncio.sleep(every_s)
        await work()


async def environments_in_use(records: RecordStore) -> set[str]:
    """Returns the digests of those that unfinished runs have, of an earlier server too."""
    return {str(record.digests.get("environment", "")) for record in await records.unfinished()}


def _kept(records: Iterable[RunRecord]) -> set[str]:
    """Returns the runs whose sandboxes outlive their server. One that is not running has no sandbox that is used."""
    return {record.run_id for record in records if record.owner is Owner.TASK}


async def _destroy(held: Iterable[tuple[Backend, Held]], known: Collection[str]) -> int:
    strays = [(backend, sandbox) for backend, sandbox in held if sandbox.key not in known]
    for backend, sandbox in strays:
        await backend.destroy(sandbox.handle)
    return len(strays)
