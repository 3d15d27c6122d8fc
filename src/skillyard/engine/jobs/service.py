"""Jobs as callers see them: started, looked at, watched, cancelled. Those of other agents do not exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from skillyard.config.commands import CommandSettings
from skillyard.config.profiles import ProfileSettings, check_quota
from skillyard.domain.errors import InvalidInput, JobNotFound, QuotaExceeded, shown
from skillyard.domain.principal import AgentScope, Principal, agent_scope
from skillyard.domain.work.job import JobRecord, JobStep
from skillyard.engine.commands.service import CommandService
from skillyard.engine.commands.tasks import WATCH_S, TaskService
from skillyard.engine.jobs.driving import Around, Jobs
from skillyard.engine.jobs.steps import JobRequest, check_steps, digest, names_of, of_step, steps_of
from skillyard.engine.runs.plan import Planner
from skillyard.ports.clock import Ids

Params = Mapping[str, Any]


class JobService:
    """Starts jobs, tells of them and ends them. ``settings`` bound what they may ask for."""

    def __init__(
        self,
        around: Around,
        jobs: Jobs,
        tasks: TaskService,
        commands: CommandService,
        planner: Planner,
        ids: Ids,
        settings: CommandSettings,
        profiles: Mapping[str, ProfileSettings],
    ) -> None:
        self._around = around
        self._store = around.jobs
        self._jobs = jobs
        self._tasks = tasks
        self._commands = commands
        self._planner = planner
        self._ids = ids
        self._settings = settings
        self._profiles = profiles
        self._watched: set[tuple[AgentScope, str]] = set()

    async def start(self, principal: Principal, params: Params) -> JobRecord:
        """Returns the record of a job that is stored, and goes on whatever becomes of its caller.

        Every step is checked before. Raises what a task raises, and QuotaExceeded.
        """
        if params["max_concurrency"] != 1:
            rule = "must be 1: the steps of a job work one after the other; start several jobs for more"
            raise InvalidInput("max_concurrency", rule, shown(params["max_concurrency"]))
        seconds = self._wall_time(params.get("max_wall_time_sec"))
        scope, names, steps = agent_scope(principal, params.get("agent")), names_of(params), steps_of(params)
        version, alias = await self._check(principal, steps, names)
        request = JobRequest(principal, tuple({**step, "version": version} for step in steps))
        job = JobRecord(
            job_id=self._ids.run().replace("run_", "job_", 1),
            project=scope.project,
            agent=scope.agent,
            principal=principal.name,
            created_at=self._around.clock.now(),
            skill=params["skill_name"],
            version=version,
            max_wall_s=seconds,
            steps=tuple(JobStep(name) for name in names),
            idempotency_key=params.get("idempotency_key"),
            request_digest=digest(steps, scope.agent, seconds, names),
            session=alias,
        )
        return await self._around.tasks.shielded(self._take(job, request), f"start of {job.job_id}")

    async def _take(self, job: JobRecord, request: JobRequest) -> JobRecord:
        most, profile = self._settings.jobs_each, self._profiles.get(request.principal.profile or "")
        quota = None if profile is None else profile.quotas.jobs
        try:
            stored = await self._store.insert(job, request.encoded(), most if quota is None else min(most, quota))
        except QuotaExceeded:
            if quota is not None and quota < most:
                check_quota(self._profiles, request.principal, "jobs", quota)
            raise
        if stored.job_id == job.job_id:
            self._jobs.begin(job, request)
        return stored

    async def _check(self, principal: Principal, steps: Sequence[Params], names: Sequence[str]) -> tuple[str, str]:
        """Returns the version of the skill that all steps get, and the session's alias."""
        version, alias = "", ""
        for at, step in enumerate(check_steps(steps, names)):
            with of_step(at):
                request = await self._commands.request(principal, step, task=True)
            if not at:
                plan = await self._planner.plan(principal, request)
                version, alias = "" if plan.of is None else plan.of.version, request.session or ""
        return version, alias

    def _wall_time(self, asked: float | None) -> float:
        """Raises InvalidInput for a time above the limit, with its name."""
        most = self._settings.max_job_time_s
        if asked is None:
            return self._settings.job_time_s
        if asked > most:
            rule = f"must be at most {most:g}, which commands.max_job_time_s says"
            raise InvalidInput("max_wall_time_sec", rule, shown(asked), limit="commands.max_job_time_s", maximum=most)
        return asked

    async def owned(self, principal: Principal, job_id: str, agent: str | None = None) -> JobRecord:
        """Returns a job of the agent. When none is named, it may be of any agent that the token may act for.

        Raises JobNotFound, alike for a job of others and for none; Forbidden for an agent that may not be named.
        """
        scope, job = agent_scope(principal, agent), await self._store.get(job_id)
        if job is not None and job.project == scope.project:
            mine = agent is None and principal.may_act_for(job.agent)
            if mine or job.agent == scope.agent:
                return job
        raise JobNotFound("job_id", f"no job '{job_id}'", job_id=job_id)

    async def list(
        self, principal: Principal, agent: str | None, *, limit: int, after: str | None
    ) -> Sequence[JobRecord]:
        """Returns jobs of the agent, newest first. Raises InvalidInput for ``after``, Forbidden."""
        return await self._store.list(agent_scope(principal, agent), limit=limit, after=after)

    async def watch(self, principal: Principal, params: Params) -> dict[str, Any]:
        """Returns how far a job is once it has ended, or when the time or ``heartbeat_sec`` is over.

        A second call with a key that is being watched answers at once. Raises JobNotFound, Busy.
        """
        job_id, agent, clock = params["job_id"], params.get("agent"), self._around.clock
        job, begun = await self.owned(principal, job_id, agent), clock.monotonic()
        scope = AgentScope(job.project, job.agent)
        key = scope, params.get("dedupe_key") or f"{scope.project}:{scope.agent}:{job_id}"
        longest, beat = params.get("timeout_sec", WATCH_S), params.get("heartbeat_sec")
        seconds = longest if beat is None else min(beat, longest)
        watched = key in self._watched
        if not watched:
            with self._watching(key):
                await self._around.waiting.poll(principal.name, job_id, round(seconds * 1000), self._end_of(job_id))
            job = await self.owned(principal, job_id, agent)
        waits = job.state.live and not watched
        return {
            **await self.told(job, params["tail_bytes"]),
            "timing": {"duration_ms": round((clock.monotonic() - begun) * 1000, 3)},
            "already_running": watched,
            "timed_out": waits and seconds == longest,
            "heartbeat": waits and seconds < longest,
        }

    def _end_of(self, job_id: str) -> Any:
        async def ended() -> JobRecord | None:
            job = await self._store.get(job_id)
            return None if job is not None and job.state.live else job

        return ended

    async def cancel(self, principal: Principal, params: Params) -> dict[str, Any]:
        """Ends a job; returns when nothing of its step is left. Raises JobNotFound, StoreFault."""
        job = await self.owned(principal, params["job_id"], params.get("agent"))
        live, reason = job.state.live, params.get("reason") or f"cancelled by {principal.name}"
        if live:
            job = await self._jobs.cancel(job, reason)
        canceled = live and job.state.value == "canceled"
        return {"job_id": job.job_id, "status": job.state.value, "reason": job.error_message, "canceled": canceled}

    async def told(self, job: JobRecord, tail_bytes: int) -> dict[str, Any]:
        """Returns a job as ``skills.job_status`` tells it."""
        return {
            **line(job),
            "current_step_index": job.current,
            "steps": [await self._told_step(step, tail_bytes) for step in job.steps],
            "error_message": job.error_message,
            "version": job.version,
            "max_wall_time_sec": job.max_wall_s,
        }

    async def _told_step(self, step: JobStep, tail_bytes: int) -> dict[str, Any]:
        record = None if step.task_id is None else await self._around.records.get(step.task_id)
        told = {"status": step.status, "exit_code": step.exit_code, **_NOTHING}
        if record is not None:
            task = await self._tasks.told(record, tail_bytes)
            told = {name: task[name] for name in told} | {"provider": task["isolation"]}
        return {"name": step.name, "task_id": step.task_id, **told}

    @contextmanager
    def _watching(self, key: tuple[AgentScope, str]) -> Iterator[None]:
        self._watched.add(key)
        try:
            yield
        finally:
            self._watched.discard(key)


_NOTHING: dict[str, Any] = {
    "provider": "",
    "attempt": 1,
    "reason": "",
    "stdout_tail": "",
    "stderr_tail": "",
    "stdout_truncated": False,
    "stderr_truncated": False,
    "created_artifacts": [],
    "output_errors": [],
    "error_message": "",
    "started_at": None,
    "finished_at": None,
}


def line(job: JobRecord) -> dict[str, Any]:
    """Returns a job as a list tells it."""
    return {
        "job_id": job.job_id,
        "status": job.state.value,
        "reason": job.reason,
        "skill_name": job.skill,
        "session_id": job.session or "",
        "agent": job.agent,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
    }
