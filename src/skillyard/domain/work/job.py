"""A job: ordered steps in one skill, each a task, and how far they are."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from skillyard.domain.errors import QuotaExceeded
from skillyard.values import dataclass


class JobState(StrEnum):
    """QUEUED until the first step begins. A live job becomes one of the last three, once."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def live(self) -> bool:
        return self in (JobState.QUEUED, JobState.RUNNING)


PENDING, SKIPPED = "pending", "skipped"
"""The states of a step before its task: it waits for its turn, or never got it. Then it has those of its task."""
STEP_FAILED, JOB_TIMEOUT, SESSION_ENDED, CANCELLED = "step_failed", "job_timeout", "session_ended", "cancelled"
"""The reasons why a job did not succeed."""


@dataclass(frozen=True, slots=True)
class JobStep:
    """One step. ``status`` and ``exit_code`` are those of its task once that has ended."""

    name: str
    status: str = PENDING
    task_id: str | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Times are UTC seconds. ``current`` is the number of the step at work, or of the last one; -1 before the first.

    Each change names the ``revision`` that it read, and counts it up.
    """

    job_id: str
    project: str
    agent: str
    principal: str
    created_at: float
    skill: str
    version: str
    max_wall_s: float
    steps: tuple[JobStep, ...]
    idempotency_key: str | None = None
    request_digest: str = ""
    state: JobState = JobState.QUEUED
    current: int = -1
    started_at: float | None = None
    finished_at: float | None = None
    reason: str = ""
    error_message: str = ""
    cancel_requested: str | None = None
    """The reason for which somebody asked it to end."""
    session: str | None = None
    """The alias of the session in whose workspace the steps work."""
    session_life: str | None = None
    """The session that had the alias when the first step ended: a later one would lack the files."""
    revision: int = 1

    def begun(self, index: int, at: float) -> JobRecord:
        """Returns the job whose step is about to begin. A later server finds by this what may have been started."""
        started_at = at if self.started_at is None else self.started_at
        return replace(self, state=JobState.RUNNING, current=index, started_at=started_at)

    def with_step(self, index: int, step: JobStep) -> JobRecord:
        return replace(self, steps=(*self.steps[:index], step, *self.steps[index + 1 :]))

    def ended(self, state: JobState, at: float, reason: str = "", message: str = "") -> JobRecord:
        """Returns the job in a final state. Steps that never began are skipped."""
        steps = tuple(replace(step, status=SKIPPED) if step.status == PENDING else step for step in self.steps)
        return replace(self, state=state, finished_at=at, reason=reason, error_message=message, steps=steps)


def step_key(job_id: str, index: int) -> str:
    """Returns the idempotency key of a step's task. No caller's key has a space."""
    return f"{job_id} {index}"


def job_of(key: str | None) -> str:
    """Returns the job of a key that :func:`step_key` made; empty for others."""
    job_id, space, _ = (key or "").partition(" ")
    return job_id if space else ""


def too_many(most: int) -> QuotaExceeded:
    """Returns the error for a principal that has ``most`` live jobs."""
    rule = f"there are {most} live jobs already, which commands.jobs_each allows; wait for one, or cancel it"
    return QuotaExceeded("steps", rule, limit="commands.jobs_each", maximum=most)
