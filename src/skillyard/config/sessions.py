"""``[sessions]``: sandboxes that are kept for several commands of one agent."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from skillyard.config.section import Section, host_memory_mb
from skillyard.domain.errors import InvalidInput
from skillyard.domain.work.limits import MINIMUM

_USUAL_DISK_MB = 16 * 1024


class SessionSettings(Section):
    """How long sessions live, and how many there may be."""

    model_config = ConfigDict(title="sessions")

    reuse_mode: Literal["none", "off", "project_agent", "session"] = Field(
        default="none",
        description="The sandbox of a command that names no session. `none` and `off`: a fresh one. `project_agent`:"
        " that of the session `default` of its project and agent. `session`: none, the command is refused.",
    )
    idle_ttl_s: float = Field(default=1800.0, gt=0, description="Time without use after which a session ends.")
    hard_ttl_s: float = Field(
        default=21600.0,
        gt=0,
        description="Time after which a session ends in any case, counted from when it was ready.",
    )
    wait_ms: int = Field(
        default=10_000, ge=0, description="Time that a call waits for a busy session, unless it says with `wait_ms`."
    )
    max_wait_ms: int = Field(default=600_000, ge=0, description="Longest time that a call may ask to wait for.")
    waiting: int = Field(default=16, ge=0, description="Calls that may wait for one session.")
    most_each: int = Field(default=16, ge=1, description="Live sessions of one principal.")
    disk_mb: int = Field(
        default_factory=lambda: min(_USUAL_DISK_MB, host_memory_mb() // 2),
        ge=MINIMUM.disk_mb,
        description="File space of all live sessions together, which is memory: the sum of their `disk_mb`, and of the"
        " `memory_mb` of those with an interpreter. A principal has three quarters of it at most. By default"
        f" {_USUAL_DISK_MB}, or half of the host's memory where that is less.",
        json_schema_extra={"default": _USUAL_DISK_MB},
    )
    grace_s: float = Field(
        default=60.0,
        ge=0,
        description="Time before its hard end from which a session begins no new call, so that the last one can end.",
    )
    reap_every_s: float = Field(default=60.0, gt=0, description="Time between two looks for sessions that are over.")
    ended_ttl_s: float = Field(
        default=7 * 86400.0, gt=0, description="Time for which an ended session says who ended it, and why."
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Raises InvalidInput for a wait above its maximum, and for a grace that leaves no time."""
        if self.wait_ms > self.max_wait_ms:
            raise InvalidInput("sessions.wait_ms", "must be at most sessions.max_wait_ms")
        if self.grace_s >= self.hard_ttl_s:
            raise InvalidInput("sessions.grace_s", "must be below sessions.hard_ttl_s")
        return self
