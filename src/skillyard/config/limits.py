"""``[limits]`` and ``[admission]``: the limits of one run, and how many runs work and wait."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

from pydantic import ConfigDict, Field, model_validator

from skillyard.config.section import MIB, Section, host_memory_mb
from skillyard.domain.work.limits import MINIMUM, LimitFamily, Limits

_USUAL = LimitFamily()


class LimitValues(Section):
    """The largest values that a run may ask for. A request above them is refused, never clamped."""

    model_config = ConfigDict(title="limits.max")

    timeout_ms: int = Field(
        default=_USUAL.maxima.timeout_ms, ge=MINIMUM.timeout_ms, description="Longest time a run may ask for."
    )
    memory_mb: int = Field(
        default=_USUAL.maxima.memory_mb, ge=MINIMUM.memory_mb, description="Most memory a run may ask for."
    )
    cpus: float = Field(
        default=_USUAL.maxima.cpus, ge=MINIMUM.cpus, description="Most processor cores a run may ask for."
    )
    pids: int = Field(
        default=_USUAL.maxima.pids, ge=MINIMUM.pids, description="Most processes and threads a run may ask for."
    )
    disk_mb: int = Field(
        default=_USUAL.maxima.disk_mb, ge=MINIMUM.disk_mb, description="Most file space a run may ask for."
    )


class LimitSettings(Section):
    """The limits of a run that names none; ``max`` holds the most that it may ask for."""

    model_config = ConfigDict(title="limits")

    timeout_ms: int = Field(
        default=_USUAL.defaults.timeout_ms,
        ge=MINIMUM.timeout_ms,
        description="Time after which a run is ended. Raise it where runs without limits of their own work for long.",
    )
    memory_mb: int = Field(
        default=_USUAL.defaults.memory_mb,
        ge=MINIMUM.memory_mb,
        description="Memory of a run. Raise it where ordinary runs end with `memory`; lower it for more runs at once.",
    )
    cpus: float = Field(
        default=_USUAL.defaults.cpus,
        ge=MINIMUM.cpus,
        description="Processor cores of a run. Raise it for parallel code.",
    )
    pids: int = Field(
        default=_USUAL.defaults.pids,
        ge=MINIMUM.pids,
        description="Processes and threads of a run. Raise it where ordinary runs end with `processes`.",
    )
    disk_mb: int = Field(
        default=_USUAL.defaults.disk_mb,
        ge=MINIMUM.disk_mb,
        description="Space of a run in `/workspace`, `/tmp` and `/dev/shm`, which is memory.",
    )
    max: LimitValues = LimitValues()

    @cached_property
    def family(self) -> LimitFamily:
        """The defaults and maxima as the rule that every run's limits are held to."""
        return LimitFamily(Limits(**self._defaults()), Limits(**self.max.model_dump()))

    @model_validator(mode="after")
    def _check_defaults(self) -> Self:
        """Raises InvalidInput for a default above its maximum."""
        self.family.resolve(self._defaults())
        return self

    def _defaults(self) -> dict[str, Any]:
        return self.model_dump(exclude={"max"})


class AdmissionSettings(Section):
    """How many runs work and wait. Several principals that want everything get equal shares."""

    model_config = ConfigDict(title="admission")

    running: int = Field(default=64, ge=1, description="Runs that work at a time. Lower it on a small host.")
    queued: int = Field(
        default=256,
        ge=0,
        description="Runs that may wait for a place; more are refused with `Busy`.",
    )
    queued_each: int = Field(default=128, ge=0, description="Runs of one principal that may wait.")
    tasks: int = Field(
        default=32,
        ge=1,
        description="Tasks that work at a time, at most half of `running`: a quarter is for services, one for runs.",
    )
    tasks_live: int = Field(
        default=2048, ge=1, description="Tasks that may wait or work; more are refused with `Busy`."
    )
    polls: int = Field(
        default=512,
        ge=1,
        description="Calls that may wait for runs at a time: those of `runs.wait`, `runs.logs` and `runs.events`.",
    )
    polls_each: int = Field(default=64, ge=1, description="Calls of one principal that may wait for runs.")
    overcommit: float = Field(
        default=4.0,
        gt=0,
        description="Times the memory of the host that running sandboxes may be promised together, memory and disk "
        "limits added. Lower it to 1 where runs really use their limits.",
    )
    reserve: float = Field(
        default=0.25,
        ge=0,
        lt=1,
        description="Part of the places, of the memory and of the queue that one principal alone leaves free for "
        "others. Set it to 0 where there is one principal only.",
    )
    requests_mb: int = Field(
        default=256,
        ge=1,
        description="Memory of the server that the requests of all runs that wait or work may hold.",
    )

    @property
    def task_places(self) -> int:
        """The most tasks that work at a time: with services at most three quarters of all places."""
        return min(self.tasks, max(1, self.running * 3 // 4 - self.service_places))

    @property
    def service_places(self) -> int:
        """The most services that work at a time: a quarter of all places."""
        return max(1, self.running // 4)

    @property
    def memory_mb(self) -> int:
        """The most that running sandboxes may be promised together, in MiB."""
        return int(host_memory_mb() * self.overcommit)

    @property
    def request_bytes(self) -> int:
        """``requests_mb`` in bytes."""
        return self.requests_mb * MIB
