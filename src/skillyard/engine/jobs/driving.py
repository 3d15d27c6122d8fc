"""Drives jobs from their records, step by step. Each change is written down before the next thing is done.

Two servers may drive one job without harm. A step's task is stored under a key of the job and the step, so that it
is started once also when both ask, and changes of the record are compare-and-set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from skillyard.domain.errors import Busy, SkillyardError, StoreFault
from skillyard.domain.work.job import (
    CANCELLED,
    JOB_TIMEOUT,
    SESSION_ENDED,
    STEP_FAILED,
    JobRecord,
    JobState,
    JobStep,
    step_key,
)
from skillyard.domain.work.record import Outcome, RunRecord, RunStatus
from skillyard.domain.work.session import SessionKey
from skillyard.engine.commands.ending import NO_CODE
from skillyard.engine.commands.service import CANCELED, FAILED, SUCCEEDED, CommandService, artifact, status_of
from skillyard.engine.jobs.steps import JobRequest, resolved
from skillyard.engine.observer import Fault, Observer
from skillyard.engine.runs.active import ActiveRuns, Waiting
from skillyard.engine.runs.service import RunService
from skillyard.engine.sessions.service import SessionService
from skillyard.engine.tasks import Tasks
from skillyard.ports.clock import Clock
from skillyard.ports.records import JobStore, RecordStore
from skillyard.values import dataclass

_TRIES = 10
_GONE = "its record is not kept any more"
Change = Callable[[JobRecord], JobRecord | None]
"""The next record, or None where somebody else has gone on meanwhile."""
End = tuple[JobState, str, str]
"""A final state, its reason and its message."""


class _Over(Exception):
    """The job has ended already."""


@dataclass(frozen=True, slots=True)
class Around:
    """Everything that each job is driven with."""

    jobs: JobStore
    commands: CommandService
    runs: RunService
    sessions: SessionService
    records: RecordStore
    active: ActiveRuns
    waiting: Waiting
    clock: Clock
    tasks: Tasks
    emit: Observer

    async def change(self, job: JobRecord, wanted: Change) -> JobRecord:
        """Returns the newest record, with the change where that still applies. Raises _Over, StoreFault."""
        for _ in range(_TRIES):
            if (wish := wanted(job)) is None:
                return job
            if (changed := await self.jobs.change(wish)) is not None:
                self.waiting.wake(job.job_id)
                return changed
            found = await self.jobs.get(job.job_id)
            if found is None or not found.state.live:
                raise _Over
            job = found
        raise StoreFault("the record of the job changes all the time; try again")


class Jobs:
    """The jobs that this server drives."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._driven: dict[str, tuple[_Driven, asyncio.Task[None]]] = {}
        self._leaving = False

    def begin(self, job: JobRecord, request: JobRequest) -> None:
        """Drives a job, unless it is driven already or the server stops."""
        if self._leaving or job.job_id in self._driven:
            return
        driven = _Driven(self._around, job, request)
        task = self._around.tasks.spawn(self._drive(driven), f"job {job.job_id}")
        self._driven[job.job_id] = driven, task
        task.add_done_callback(lambda _: self._driven.pop(job.job_id, None))

    async def resume(self) -> None:
        """Drives all live jobs of an earlier server, and those that a fault stopped."""
        try:
            for job in await self._around.jobs.live():
                if job.job_id not in self._driven and (text := await self._around.jobs.request(job.job_id)):
                    self.begin(job, JobRequest.decoded(text, job))
        except SkillyardError as error:  # the next look comes all the same
            self._around.emit(Fault("job", error))

    async def cancel(self, job: JobRecord, reason: str) -> JobRecord:
        """Returns the job when it has ended, with its step. Raises StoreFault when it could not be ended now."""

        def asked(held: JobRecord) -> JobRecord:
            return replace(held, cancel_requested=held.cancel_requested or reason)

        around = self._around
        with suppress(_Over):
            job = await around.change(job, asked)
            if job.job_id not in self._driven:
                await self.resume()
            if (found := self._driven.get(job.job_id)) is not None:
                driven, task = found
                driven.interrupt(reason)
                await asyncio.wait((task,))
        ended = await around.jobs.get(job.job_id)
        if ended is None or ended.state.live:
            raise StoreFault("the job could not be cancelled yet, and will be as soon as possible; ask again")
        return ended

    def stop(self) -> None:
        """Leaves all jobs to the next server."""
        self._leaving = True
        for _, task in self._driven.values():
            task.cancel()

    async def leave(self) -> None:
        """Leaves all jobs to the next server; returns when none is driven any more."""
        self.stop()
        if tasks := [task for _, task in self._driven.values()]:
            await asyncio.wait(tasks)

    async def _drive(self, driven: _Driven) -> None:
        job, sessions = driven.job, self._around.sessions
        key = None if job.session is None else SessionKey(job.project, job.agent, job.session)
        if key is not None and job.current >= 0:  # an earlier server's job had the session
            sessions.hold(key, job.job_id)
        try:
            await driven.to_its_end()
        except _Over:
            return
        except Exception as error:  # noqa: BLE001 - a later look goes on with it
            self._around.emit(Fault("job", error, job.job_id))
        finally:
            if key is not None:
                sessions.let_go(key, job.job_id)


class _Driven:
    """One job while it is driven."""

    def __init__(self, around: Around, job: JobRecord, request: JobRequest) -> None:
        self.job = job
        self._request = request
        self._around = around
        self._cancel = job.cancel_requested
        self._bound: asyncio.Timeout | None = None
        self._until: float | None = None

    def interrupt(self, reason: str) -> None:
        """Has the driver look, since somebody asked the job to end."""
        self._cancel = self._cancel or reason
        if self._bound is not None:
            self._bound.reschedule(_now())

    async def to_its_end(self) -> None:
        """Raises _Over, and StoreFault or Busy for a job that is to be gone on with later."""
        while self.job.state.live:
            index = max(0, self.job.current)
            record = await self._task(index)
            if record is None and self.job.steps[index].task_id is None:
                record = await self._started(index)
            elif record is None:
                await self._end((JobState.FAILED, STEP_FAILED, f"{self._named(index)}: {_GONE}"))
            if record is not None:
                await self._settle(index, await self._ended(record))

    async def _task(self, index: int) -> RunRecord | None:
        """Returns the record of a step's task, also of one that an earlier server did not note."""
        step, records = self.job.steps[index], self._around.records
        if step.task_id is not None:
            return await records.get(step.task_id)
        return await records.by_key(self.job.principal, self._key(index)) if self.job.current == index else None

    async def _started(self, index: int) -> RunRecord | None:
        """Returns the record of a step's new task; None when the job has ended instead."""
        around, job = self._around, self.job
        if (end := self._due(job)) is not None:
            await self._end(end)
            return None
        if job.current != index:
            job = self.job = await around.change(job, self._beginning(index))
            if job.current != index:
                return None
        if job.session_life is not None and not await around.sessions.is_live(job.session_life):
            await self._end((JobState.FAILED, SESSION_ENDED, f"the session ended before {self._named(index)}"))
            return None
        try:
            asked = resolved(index, self._request.steps[index], await self._made(index))
            request = await around.commands.request(self._request.principal, asked, task=True)
            request = replace(request, idempotency_key=self._key(index), life=job.session_life or "")
            record = await around.runs.record(self._request.principal, request, accepted=True)
        except (StoreFault, Busy):
            raise
        except SkillyardError as error:
            await self._end((JobState.FAILED, STEP_FAILED, f"{self._named(index)}: {error.message}"), index)
            return None
        self.job = await around.change(self.job, _noting(index, record))
        return record

    async def _ended(self, record: RunRecord) -> RunRecord:
        """Returns the record of a step when it has ended. A step is ended when its job is."""
        while record.status.live:
            if (end := self._due(self.job)) is None:
                record = await self._waited(record) or record
            else:
                record = await self._cancelled(record, f"the job ended: {end[2]}")
        return record

    async def _waited(self, record: RunRecord) -> RunRecord | None:
        """Returns the record when the task has ended; None when the job's end comes first."""

        async def ended() -> RunRecord | None:
            found = await self._around.records.get(record.run_id)
            return _lost(record) if found is None else None if found.status.live else found

        try:
            async with asyncio.timeout_at(self._until) as self._bound:
                return await self._around.waiting.until(record.run_id, ended)
        except TimeoutError:
            return None
        finally:
            self._bound = None

    async def _cancelled(self, record: RunRecord, reason: str) -> RunRecord:
        """Ends a task, and returns its record when nothing of it is left."""
        around, task_id = self._around, record.run_id

        async def driven() -> RunRecord | None:
            found = await around.records.get(task_id)
            if found is None:
                return _lost(record)
            return found if not found.status.live or task_id in around.active else None

        found = await around.waiting.until(task_id, driven)
        if found.status.live:
            await around.runs.cancel(task_id, reason)
            found = await around.records.get(task_id) or _lost(record)
        return found

    async def _settle(self, index: int, record: RunRecord) -> None:
        """Writes down how a step ended, and with it the job's next step or its end."""
        at = self._around.clock.now()

        def settled(job: JobRecord) -> JobRecord | None:
            if job.current != index:
                return None
            status, output = status_of(record), record.output if isinstance(record.output, dict) else {}
            code = NO_CODE if status == CANCELED else output.get("exit_code", NO_CODE)
            step = JobStep(job.steps[index].name, status, record.run_id, code)
            job, due = job.with_step(index, step), self._due(job)
            if job.session_life not in (None, record.session_life):
                return job.ended(JobState.FAILED, at, SESSION_ENDED, f"the session ended before {self._named(index)}")
            if status == SUCCEEDED and index + 1 == len(job.steps):
                return job.ended(JobState.SUCCEEDED, at)
            if status != FAILED and due is not None:
                return job.ended(due[0], at, *due[1:])
            if status == SUCCEEDED:
                return replace(job, session_life=record.session_life).begun(index + 1, at)
            why = record.reason or f"it is {status}"
            return job.ended(JobState.FAILED, at, STEP_FAILED, f"{self._named(index)}: {why}")

        self.job = await self._around.change(self.job, settled)

    async def _end(self, end: End, failed: int | None = None) -> None:
        """``failed`` is a step that could not be started."""
        at, (state, reason, message) = self._around.clock.now(), end

        before = self.job.current

        def ended(job: JobRecord) -> JobRecord | None:
            if job.current != before:
                return None
            if failed is not None:
                job = job.with_step(failed, replace(job.steps[failed], status=FAILED))
            return job.ended(state, at, reason, message)

        self.job = await self._around.change(self.job, ended)

    def _due(self, job: JobRecord) -> End | None:
        """Returns how the job is to end before its last step, if it is."""
        cancel = job.cancel_requested or self._cancel
        if cancel is not None:
            return JobState.CANCELED, CANCELLED, cancel
        if job.started_at is None:
            return None
        if self._until is None:
            spent = max(0.0, self._around.clock.now() - job.started_at)
            self._until = _now() + max(0.0, job.max_wall_s - spent)
        if _now() < self._until:
            return None
        return JobState.FAILED, JOB_TIMEOUT, f"its {job.max_wall_s:g} seconds are over (max_wall_time_sec)"

    def _beginning(self, index: int) -> Change:
        now = self._around.clock.now()
        return lambda job: job.begun(index, now) if job.current < index else None

    async def _made(self, index: int) -> dict[str, dict[str, str]]:
        """Returns the artifacts of the steps before one: blob ids by step and file name."""
        made: dict[str, dict[str, str]] = {}
        for step in self.job.steps[:index]:
            record = None if step.task_id is None else await self._around.records.get(step.task_id)
            files = [artifact(file) for file in (() if record is None else record.files)]
            made[step.name] = {file["filename"]: file["artifact_id"] for file in files}
        return made

    def _key(self, index: int) -> str:
        return step_key(self.job.job_id, index)

    def _named(self, index: int) -> str:
        return f"step '{self.job.steps[index].name}'"


def _noting(index: int, record: RunRecord) -> Change:
    def noted(job: JobRecord) -> JobRecord | None:
        step = job.steps[index]
        if job.current != index or step.task_id is not None:
            return None
        return job.with_step(index, replace(step, status=status_of(record), task_id=record.run_id))

    return noted


def _lost(record: RunRecord) -> RunRecord:
    """Returns the end of a task whose record is not kept any more."""
    return replace(record, status=RunStatus.FAILED, outcome=Outcome.LOST, reason=_GONE)


def _now() -> float:
    return asyncio.get_running_loop().time()
