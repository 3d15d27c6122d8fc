"""A session: a sandbox that is kept for several runs of one agent, and its clocks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from skillyard.domain.errors import InvalidInput, QuotaExceeded, shape
from skillyard.domain.work.record import Lease
from skillyard.values import dataclass

USUAL_ALIAS = "default"
"""The alias of calls that name none, where the settings keep one sandbox for each agent."""
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class SessionState(StrEnum):
    """CREATING until its first sandbox stands, DRAINING once no call may begin. ENDED is terminal."""

    CREATING = "creating"
    READY = "ready"
    DRAINING = "draining"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Names the live session of an agent: aliases of two agents never mean the same one."""

    project: str
    agent: str
    alias: str


def check_alias(alias: str) -> str:
    """Returns an alias. Raises InvalidInput."""
    if not _ALIAS.fullmatch(alias):
        rule = "must be a letter or digit, then letters, digits or . _ -, at most 64 in all"
        raise InvalidInput("session_id", rule, shape(alias))
    return alias


def too_many(most: int) -> QuotaExceeded:
    """Returns the error for a principal that has ``most`` live sessions."""
    rule = f"there are {most} sessions already, which sessions.most_each allows; end one with skills.end_session"
    return QuotaExceeded("session_id", rule, limit="sessions.most_each", maximum=most)


def too_many_of_profile(profile: str, most: int) -> QuotaExceeded:
    """Returns the error for a token that has all sessions that its profile allows."""
    name = f"profiles.{profile}.quotas.sessions"
    rule = f"this token has {most} sessions that have not ended, and its profile '{profile}' allows {most}"
    return QuotaExceeded("session_id", f"{rule}; end one with skills.end_session", limit=name, maximum=most)


def too_large(most_mb: int) -> QuotaExceeded:
    """Returns the error for a session whose files may not have so much space."""
    rule = f"files and interpreters of all sessions may take {most_mb} MiB together, those of one principal 3/4 of that"
    remedy = "which sessions.disk_mb says; end a session with skills.end_session, or ask for less with limits.disk_mb"
    return QuotaExceeded("session_id", f"{rule}, {remedy}", limit="sessions.disk_mb", maximum=most_mb)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One life of a session. The next one of the same key is another record.

    ``created_at`` and ``ended_at`` are UTC seconds; ``ready_at`` and ``used_at`` are seconds of CLOCK_BOOTTIME in the
    boot that ``boot`` names, so that nobody prolongs or ends a session by setting the clock. ``principal`` made it.
    """

    session_id: str
    key: SessionKey
    principal: str
    created_at: float
    boot: str
    used_at: float
    idle_s: float
    hard_s: float
    state: SessionState = SessionState.CREATING
    ready_at: float | None = None
    isolation: str = ""
    sandbox: str | None = None
    """The backend's handle."""
    sandboxes: int = 0
    """How many it has had: with the id, the key by which a backend makes the next one."""
    stood: int = 0
    """The number of the one that it has; 0 for a record of an earlier release."""
    fit: str = ""
    """Digest of what the sandbox was made from. A call that needs another one gets the files in a new sandbox."""
    skills: tuple[str, ...] = ()
    """The skills that worked in it."""
    untrusted: str = ""
    """Why runs in it get the least rights: skills that are not approved left files in it."""
    disk_mb: int = 0
    """The disk limit of its sandbox: its files may hold that much memory while it is idle."""
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The runs whose programs go on between calls, each with its skills."""
    interpreter: str = ""
    """The program of the Python interpreter that it had last; empty before its first cell."""
    interpreter_skills: tuple[str, ...] = ()
    """The skills that cells of that interpreter could import."""
    call: str | None = None
    """The run that has it now."""
    runs: int = 0
    lease: Lease | None = None
    revision: int = 1
    ended_at: float | None = None
    ended_by: str = ""
    """``idle``, ``hard``, ``lost``, ``server``, or the principal that ended it."""
    reason: str = ""

    @property
    def live(self) -> bool:
        return self.state is not SessionState.ENDED

    @property
    def idle_until(self) -> float:
        """Returns when it ends unless it is used before, in seconds of its boot."""
        return min(self.used_at + self.idle_s, self.hard_until)

    @property
    def hard_until(self) -> float:
        return (self.used_at if self.ready_at is None else self.ready_at) + self.hard_s

    @property
    def backend_key(self) -> str:
        """Returns the key of its sandbox, by which a survey tells whose it is."""
        return f"{self.session_id}-{self.sandboxes}"
