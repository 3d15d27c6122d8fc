"""The in-memory twin of the port of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from skillyard.domain.checks import check_page, check_unicode
from skillyard.domain.errors import IdempotencyConflict, InvalidInput, shown
from skillyard.domain.principal import AgentScope
from skillyard.domain.work.job import JobRecord, too_many


class MemoryJobs:
    """A :class:`skillyard.ports.records.JobStore`."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobRecord] = {}
        self._requests: dict[str, str] = {}

    async def insert(self, job: JobRecord, request: str, most: int) -> JobRecord:
        for name in ("job_id", "project", "agent", "principal", "idempotency_key"):
            check_unicode(name, getattr(job, name) or "")
        mine = [held for held in self._jobs.values() if held.principal == job.principal]
        for held in mine:
            if job.idempotency_key is not None and held.idempotency_key == job.idempotency_key:
                if held.request_digest == job.request_digest:
                    return held
                raise IdempotencyConflict("idempotency_key", "was used before, for another job")
        if sum(held.finished_at is None for held in mine) >= most:
            raise too_many(most)
        self._jobs[job.job_id] = job
        self._requests[job.job_id] = request
        return job

    async def change(self, job: JobRecord) -> JobRecord | None:
        held = self._jobs.get(job.job_id)
        if held is None or held.finished_at is not None or held.revision != job.revision:
            return None
        changed = self._jobs[job.job_id] = replace(job, revision=job.revision + 1)
        if changed.finished_at is not None:
            del self._requests[job.job_id]
        return changed

    async def get(self, job_id: str) -> JobRecord | None:
        return self._jobs.get(job_id)

    async def request(self, job_id: str) -> str | None:
        return self._requests.get(job_id)

    async def live(self) -> Sequence[JobRecord]:
        return [job for job in self._jobs.values() if job.finished_at is None]

    async def list(self, scope: AgentScope, *, limit: int = 50, after: str | None = None) -> Sequence[JobRecord]:
        check_page(limit)
        found = [job for job in reversed(self._jobs.values()) if AgentScope(job.project, job.agent) == scope]
        if after is not None:
            ids = [job.job_id for job in found]
            if after not in ids:
                raise InvalidInput("after", "must be the id of an existing job", shown(after))
            found = found[ids.index(after) + 1 :]
        return found[:limit]

    async def sweep(self, older_than: float) -> int:
        return self._delete([job for job in self._jobs.values() if job.finished_at and job.finished_at < older_than])

    async def trim(self, most: int) -> int:
        held: dict[str, list[JobRecord]] = {}
        for job in self._jobs.values():
            held.setdefault(job.principal, []).append(job)
        gone = []
        for jobs in held.values():
            gone += [job for job in jobs if job.finished_at is not None][: max(0, len(jobs) - most)]
        return self._delete(gone)

    def _delete(self, jobs: Sequence[JobRecord]) -> int:
        for job in jobs:
            del self._jobs[job.job_id]
        return len(jobs)
