"""Sandboxes that callers keep. Each is a detached run whose program does nothing.

So it is admitted, granted, recorded, resumed and ended as any other run. It belongs to the principal that asked for it
alone. Its time is in its record; a caller may move that, and a sweep ends what is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from typing import Any, TypeVar

from skillyard.config.profiles import ProfileSettings
from skillyard.domain.errors import (
    Busy,
    Forbidden,
    InvalidInput,
    RunNotFound,
    SandboxFault,
    SandboxGone,
    SkillyardError,
    StoreFault,
    shown,
)
from skillyard.domain.network.rule import Rule
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.sandbox.guarantees import Level
from skillyard.domain.work.command import from_params
from skillyard.domain.work.record import RunKind, RunRecord
from skillyard.domain.work.service import Service
from skillyard.domain.work.stay import Stay, check_metadata
from skillyard.engine.observer import Fault, Observer
from skillyard.engine.runs.active import ActiveRun, ActiveRuns
from skillyard.engine.runs.failure import LeftBehind
from skillyard.engine.runs.request import RunRequest
from skillyard.engine.runs.service import RunService
from skillyard.engine.runs.task_record import Brief
from skillyard.engine.services import pauses
from skillyard.engine.services.programs import Programs
from skillyard.engine.tasks import Tasks
from skillyard.ports.clock import Clock, Ids
from skillyard.ports.records import RecordStore
from skillyard.ports.sandbox import Sandbox
from skillyard.values import dataclass

T = TypeVar("T")
TOOL = "sandboxes"
"""The tool that a profile names to allow sandboxes of a caller's own."""
OVER = "its time is over"
_REFUSED = ("PolicyRefused", "ValidationError")


class PauseRefused(SkillyardError):
    """A sandbox cannot be paused: its processes cannot be told from others."""

    type = "PauseRefused"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wishes for a sandbox. ``env`` is for all of its programs; ``network`` is None for what policy gives."""

    stay: Stay
    environment: str | None = None
    image: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    network: tuple[Rule, ...] | None = None
    idempotency_key: str | None = None


class SandboxService:
    """Makes sandboxes, finds them, moves their ends. None is kept for longer than ``longest_s``.

    ``variables`` are those of the server that every program gets.
    """

    def __init__(
        self,
        runs: RunService,
        records: RecordStore,
        active: ActiveRuns,
        tasks: Tasks,
        clock: Clock,
        ids: Ids,
        emit: Observer,
        profiles: Mapping[str, ProfileSettings],
        variables: Mapping[str, str],
        longest_s: float,
    ) -> None:
        self._runs = runs
        self._records = records
        self._active = active
        self._tasks = tasks
        self._clock = clock
        self.ids = ids
        self._emit = emit
        self._profiles = profiles
        self._variables = variables
        self._longest_s = longest_s
        self._programs: dict[str, Programs] = {}
        self._ending: set[str] = set()
        self._turns: dict[str, asyncio.Lock] = {}
        """One change between paused and running at a time, by sandbox."""
        self._kept: set[str] = set()
        """Paused sandboxes that stay so."""

    async def make(self, principal: Principal, wanted: Wanted) -> RunRecord:
        """Returns the record of a sandbox that stands.

        Raises what :meth:`RunService.record` raises, Forbidden for what policy does not give, SandboxFault.
        """
        _check(principal)
        longest_s = self._longest(principal)
        check_seconds(wanted.stay.seconds, longest_s)
        stay = replace(wanted.stay, metadata=check_metadata(wanted.stay.metadata))
        command = from_params({"command": "stay", "language": "bash", "workdir": ".", "env": dict(wanted.env)})
        request = RunRequest(
            kind=RunKind.COMMAND,
            limits={"timeout_ms": round(longest_s * 1000)},
            environment=wanted.environment,
            image=wanted.image,
            network=wanted.network,
            idempotency_key=wanted.idempotency_key,
            detach=True,
            command=replace(command, service=Service()),
            agent=principal.agent,
            stay=stay,
        )
        record = await self._runs.record(principal, request)
        record = await self._standing(record.run_id)
        if (refusal := _unfit(record, stay)) is not None:
            await self._runs.cancel(record.run_id, refusal.message)
            raise refusal
        return record

    async def find(self, principal: Principal, run_id: str) -> RunRecord:
        """Returns the record of a live sandbox of the principal's own. Raises RunNotFound, Forbidden."""
        _check(principal)
        record = self._held(run_id)
        if record is None or record.principal != principal.name:
            raise RunNotFound("sandbox_id", f"no sandbox {shown(run_id)}")
        return record

    def live(self, run_id: str) -> RunRecord:
        """Returns the record of a live sandbox of any principal. Raises RunNotFound."""
        record = self._held(run_id)
        if record is None:
            raise RunNotFound("sandbox_id", f"no sandbox {shown(run_id)}")
        return record

    def all(self) -> Iterator[RunRecord]:
        """Yields the records of all live sandboxes."""
        for run_id in list(self._active):
            if (record := self._held(run_id)) is not None:
                yield record

    def list(self, principal: Principal) -> list[RunRecord]:
        """Returns the principal's sandboxes, newest first. Raises Forbidden."""
        _check(principal)
        mine = [record for record in self.all() if record.principal == principal.name]
        return sorted(mine, key=lambda record: (record.created_at, record.run_id), reverse=True)

    async def move_end(
        self, principal: Principal, run_id: str, seconds: float, *, only_later: bool = False
    ) -> RunRecord:
        """Returns the record of a sandbox that ends ``seconds`` from now.

        With ``only_later`` it ends as before where that is later.

        Raises RunNotFound, Forbidden, InvalidInput for a time that is behind the longest, StoreFault.
        """
        record = await self.find(principal, run_id)
        now = self._clock.boottime()
        latest_s = self._longest(principal)
        if record.deadline is not None:
            latest_s = min(latest_s, record.deadline - now)
        check_seconds(seconds, latest_s)
        until = now + seconds

        def moved(stay: dict[str, Any]) -> None:
            stay["until"] = max(stay["until"], until) if only_later else until

        return await self._stays(run_id, moved)

    async def pause(self, principal: Principal, run_id: str) -> bool:
        """Stops all processes of a sandbox, whose time stands still too. Returns whether it was not paused before.

        It keeps its place and its memory, and ends at the latest with the longest time of a sandbox.
        Raises RunNotFound, Forbidden, PauseRefused, SandboxFault, SandboxGone, StoreFault.
        """
        await self.find(principal, run_id)
        return await self._pause(run_id)

    async def resume(self, principal: Principal, run_id: str, seconds: float) -> bool:
        """Lets the processes of a paused sandbox go on for so long. Returns whether it was paused.

        Raises what :meth:`move_end` raises, SandboxFault, SandboxGone.
        """
        await self.find(principal, run_id)
        check_seconds(seconds, self._longest(principal))
        return await self._resume(run_id, seconds)

    async def awake(self, record: RunRecord) -> RunRecord:
        """Returns a sandbox that runs. One that is paused goes on where its caller wished that, for its first time.

        Raises SandboxGone for one that stays paused, SandboxFault, StoreFault.
        """
        stay = record.stay or {}
        if not stay.get("paused"):
            return record
        if not stay.get("wakes"):
            raise SandboxGone("the sandbox is paused")
        await self._resume(record.run_id, stay["seconds"])
        try:
            return self.live(record.run_id)
        except RunNotFound:
            raise SandboxGone("the sandbox has ended") from None

    async def _pause(self, run_id: str) -> bool:
        async with self._turn(run_id):
            record = self.live(run_id)
            if is_paused(record):
                return False
            if not pauses.may_pause(record):
                raise _not_pausable(record)
            programs = await self.programs(run_id)
            holder = await pauses.stop(programs)
            latest = record.deadline or self._clock.boottime() + self._longest_s

            def paused(stay: dict[str, Any]) -> None:
                stay["paused"], stay["until"] = holder, latest

            try:
                await self._stays(run_id, paused)
                await pauses.keep(programs.sandbox, holder)
            except BaseException:
                await pauses.go_on(programs.sandbox, holder)
                raise
            self._kept.add(run_id)
            return True

    async def _resume(self, run_id: str, seconds: float) -> bool:
        async with self._turn(run_id):
            record = self.live(run_id)
            if not is_paused(record):
                return False
            sandbox, until = self.sandbox(run_id), self._clock.boottime() + seconds
            latest = until if record.deadline is None else min(until, record.deadline)
            with suppress(SandboxGone):  # of the program alone: then nothing holds the others still
                await pauses.go_on(sandbox, (record.stay or {})["paused"])

            def running(stay: dict[str, Any]) -> None:
                stay["paused"], stay["until"] = "", latest

            await self._stays(run_id, running)
            self._kept.discard(run_id)
            return True

    async def _keep(self, run_id: str) -> None:
        """Keeps a sandbox paused that an earlier server paused, or has its record say that it runs."""
        try:
            stay = self.live(run_id).stay or {}
            async with self._turn(run_id):
                await pauses.keep(self.sandbox(run_id), stay["paused"])
        except Busy:  # not attached yet
            self._kept.discard(run_id)
        except SandboxGone:
            with suppress(SkillyardError):
                await self._resume(run_id, stay["seconds"])

    def _turn(self, run_id: str) -> asyncio.Lock:
        return self._turns.setdefault(run_id, asyncio.Lock())

    async def _stays(self, run_id: str, change: Callable[[dict[str, Any]], None]) -> RunRecord:
        """Returns the record of a sandbox whose wishes changed. Raises StoreFault."""

        def changed(held: RunRecord) -> RunRecord:
            stay = dict(held.stay or {})
            change(stay)
            return replace(held, stay=stay)

        active = self._active.get(run_id)
        if active is None or active.ledger is None:
            raise SandboxGone("the sandbox has ended")
        try:
            await active.ledger.took(changed)
        except LeftBehind as left:
            raise StoreFault(f"the sandbox's time could not be written down: {left}; try again") from left
        return active.ledger.record

    async def end(self, principal: Principal, run_id: str) -> None:
        """Ends a sandbox; nothing of it is left then. Raises RunNotFound, Forbidden, StoreFault."""
        await self.find(principal, run_id)
        await self._runs.cancel(run_id, f"'{principal.name}' ended it")

    async def reap(self) -> None:
        """Begins to end the sandboxes whose time is over, and forgets those that are gone."""
        now = self._clock.boottime()
        for record in self.all():
            if record.stay is not None and record.stay["until"] <= now and record.run_id not in self._ending:
                self._ending.add(record.run_id)
                self._tasks.spawn(self._end(record.run_id), f"end of {record.run_id}")
            if is_paused(record) and record.run_id not in self._kept:
                self._kept.add(record.run_id)
                self._tasks.spawn(self._keep(record.run_id), f"pause of {record.run_id}")
        for run_id in self._programs.keys() - self._active.keys():
            self._programs.pop(run_id).close()
        for run_id in self._turns.keys() - self._active.keys():
            del self._turns[run_id]
        self._kept &= self._active.keys()

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Starts work that goes on beside requests, and ends with the server."""
        return self._tasks.spawn(work, name)

    def sandbox(self, run_id: str) -> Sandbox:
        """Returns a live sandbox. Raises SandboxGone, Busy while a new server has not found it again."""
        active = self._active.get(run_id)
        if active is None or self._held(run_id) is None:
            raise SandboxGone("the sandbox has ended")
        if active.sandbox is None:
            raise Busy("the sandbox is not attached yet; come again", retry_after_ms=250)
        return active.sandbox

    async def programs(self, run_id: str) -> Programs:
        """Returns the programs of a live sandbox. Raises SandboxGone, Busy, StoreFault."""
        sandbox = self.sandbox(run_id)
        known = self._programs.get(run_id)
        if known is None or not known.are_of(sandbox):
            env = await self._env(run_id)
            before = await self._records.events(run_id)
            active = self._active.get(run_id)
            if active is None or active.ledger is None:
                raise SandboxGone("the sandbox has ended")
            known = self._programs.setdefault(run_id, Programs(active, sandbox, env, self.ids, self._tasks))
            if not known.are_of(sandbox):
                known = self._programs[run_id] = Programs(active, sandbox, env, self.ids, self._tasks)
            known.remember(before)
        return known

    async def _env(self, run_id: str) -> dict[str, str]:
        text = await self._records.request(run_id)
        if text is None:
            raise SandboxGone("the sandbox has ended")
        record = self._held(run_id)
        if record is None:
            raise SandboxGone("the sandbox has ended")
        command = Brief.decoded(text, record).request.command
        return {**self._variables, **({} if command is None else command.env)}

    async def _standing(self, run_id: str) -> RunRecord:
        while (active := self._active.get(run_id)) is not None:
            if active.sandbox is not None and active.ledger is not None:
                return active.ledger.record
            await active.starting()
        raise _failure(await self._records.get(run_id))

    def _held(self, run_id: str) -> RunRecord | None:
        active: ActiveRun | None = self._active.get(run_id)
        record = None if active is None or active.ledger is None else active.ledger.record
        if record is None or record.stay is None or not record.status.live or record.outcome is not None:
            return None
        return None if record.cancel_requested is not None else record

    def _longest(self, principal: Principal) -> float:
        profile = self._profiles.get(principal.profile or "")
        most_ms = None if profile is None else profile.limits.most.get("timeout_ms")
        return self._longest_s if most_ms is None else min(self._longest_s, most_ms / 1000)

    async def _end(self, run_id: str) -> None:
        try:
            if not await self._is_paused_instead(run_id):
                await self._runs.cancel(run_id, OVER)
        except SkillyardError as error:  # a later look tries again
            self._emit(Fault("sandbox", error, run_id))
        finally:
            self._ending.discard(run_id)

    async def _is_paused_instead(self, run_id: str) -> bool:
        """Returns whether a sandbox whose time is over was paused. One that cannot be is ended."""
        stay = self.live(run_id).stay or {}
        if not stay.get("pauses") or stay.get("paused"):
            return False
        try:
            return await self._pause(run_id)
        except SkillyardError as error:
            self._emit(Fault("sandbox", error, run_id))
            return False


def _unfit(record: RunRecord, stay: Stay) -> SkillyardError | None:
    """Returns why a sandbox of this isolation cannot be kept by its caller; None where it can."""
    if record.enforced.get("mount_namespace") == Level.MISSING:
        rule = "must give a sandbox a file system of its own (mount_namespace); choose another with policy.isolation"
        return InvalidInput("isolation", rule, shown(record.isolation))
    return _not_pausable(record) if stay.pauses and not pauses.may_pause(record) else None


def _not_pausable(record: RunRecord) -> PauseRefused:
    return PauseRefused(f"sandboxes of the isolation '{record.isolation}' cannot be paused")


def is_paused(record: RunRecord) -> bool:
    """Returns whether the processes of a sandbox stand still."""
    return bool((record.stay or {}).get("paused"))


def check_seconds(seconds: float, longest_s: float) -> None:
    """Raises InvalidInput for a time that is not positive, or above the longest."""
    if not 0 < seconds <= longest_s:
        rule = f"must be more than 0 and at most {longest_s:.0f} seconds"
        raise InvalidInput("timeout", rule, shown(seconds), limit="timeout", maximum=longest_s)


def _check(principal: Principal) -> None:
    principal.require_tool(TOOL)
    principal.require(Scope.RUN_CODE)


def _failure(record: RunRecord | None) -> SkillyardError:
    """Returns the error of a sandbox that could not be made or has ended."""
    error: Mapping[str, Any] = {} if record is None else record.error or {}
    message = str(error.get("message") or (record.reason if record is not None else "") or "the sandbox has ended")
    return Forbidden(message) if error.get("type") in _REFUSED else SandboxFault(message)
