"""The events of the engine: typed events, turned into logs, metrics and spans by the faces.

Events are plain values and are emitted on the event loop's thread; an observer must neither block nor raise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from skillyard.domain.work.record import RunRecord
from skillyard.values import dataclass


@dataclass(frozen=True, slots=True)
class RunQueued:
    """A run waits for a free place. ``waiting`` counts it."""

    run_id: str
    principal: str
    waiting: int


@dataclass(frozen=True, slots=True)
class RunRefused:
    """A run was turned away before it had a record; ``error`` is the error's type."""

    kind: str
    principal: str
    error: str


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The sandbox stands and foreign code begins. Milliseconds since the request was taken, and within
    them those that the queue and the sandbox took."""

    run_id: str
    kind: str
    principal: str
    skill: str | None
    queued_ms: float
    created_ms: float


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The record is written and the sandbox is gone. ``total_ms`` is what the caller waited."""

    record: RunRecord
    total_ms: float
    running: int


@dataclass(frozen=True, slots=True)
class SecretsGiven:
    """Names of the secrets that a run got, for the audit log."""

    run_id: str
    principal: str
    skill: str | None
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NetworkUsed:
    """The connections of a run that had a network, when it is over. ``refusals`` are the first few, each with why."""

    run_id: str
    principal: str
    skill: str | None
    allowed: int
    refused: int
    sent_bytes: int
    received_bytes: int
    refusals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NetworkChanged:
    """Somebody changed the rules of one layer for a run at work; they are in force now."""

    run_id: str
    principal: str
    layer: str
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EnvironmentInstalling:
    """``wanted`` is the digest of the requirements: what they are resolved to is not known yet."""

    wanted: str
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EnvironmentInstalled:
    """``digest`` is of the lock that they were resolved to."""

    wanted: str
    digest: str
    seconds: float


@dataclass(frozen=True, slots=True)
class EnvironmentFailed:
    wanted: str
    reason: str


@dataclass(frozen=True, slots=True)
class ModulesAhead:
    """Runs of an environment begin with these ``modules`` imported.

    ``faults`` say why others are not. ``digest`` is that of its lock.
    """

    environment: str
    digest: str
    modules: tuple[str, ...]
    faults: Mapping[str, str]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class CatalogueChanged:
    """Somebody published, withdrew, restored, pinned or unpinned a version (``act``).

    The name belongs to ``project``. ``digest`` identifies the bytes. ``disabled`` and ``enabled`` are acts of a
    ``project`` for itself, of no version.
    """

    act: str
    skill: str
    version: str
    digest: str
    principal: str
    project: str


@dataclass(frozen=True, slots=True)
class ApprovalChanged:
    """An operator approved what a version declares, or took that back (``act``). ``version`` is ``*`` for all of them,
    ``digest`` empty for whatever bytes."""

    act: str
    skill: str
    version: str
    digest: str
    principal: str
    note: str


@dataclass(frozen=True, slots=True)
class ToolsChanged:
    """The tools of an MCP server that are offered may be others now."""

    server: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """Start-up settled the runs and sandboxes of a dead server."""

    lost_runs: int
    destroyed_sandboxes: int
    resumed_runs: int = 0


@dataclass(frozen=True, slots=True)
class RunResumed:
    """This server drives a run that another one took on, and that had come to ``status``."""

    run_id: str
    principal: str
    status: str


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """This server stopped driving a run, which goes on.

    Another server has it, or its record cannot be written (``why``).
    """

    run_id: str
    why: str


@dataclass(frozen=True, slots=True)
class Swept:
    """How many expired blobs, old records, stray sandboxes and unused environments went."""

    blobs: int
    records: int
    sandboxes: int = 0
    environments: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """Our own machinery failed; ``where`` names the step, ``part`` the process. The caller got an error of its own."""

    where: str
    error: BaseException
    run_id: str | None = None
    part: str = "server"


@dataclass(frozen=True, slots=True)
class PartLost:
    """The keeper, the gate or another process that runs depend on ended without an order."""

    part: str
    why: str


@dataclass(frozen=True, slots=True)
class PartVersion:
    """A process of an earlier version was found or has ended, as ``text`` says."""

    part: str
    text: str


@dataclass(frozen=True, slots=True)
class PartRestarted:
    """The process runs again, after so many attempts and seconds."""

    part: str
    attempts: int
    seconds: float


Event = (
    RunQueued
    | RunRefused
    | RunStarted
    | RunEnded
    | SecretsGiven
    | NetworkUsed
    | NetworkChanged
    | EnvironmentInstalling
    | EnvironmentInstalled
    | EnvironmentFailed
    | ModulesAhead
    | CatalogueChanged
    | ApprovalChanged
    | ToolsChanged
    | Recovered
    | RunResumed
    | LeaseLost
    | Swept
    | Fault
    | PartLost
    | PartRestarted
    | PartVersion
)


class Observer(Protocol):
    def __call__(self, event: Event, /) -> None: ...


def ignore(_event: Event, /) -> None:
    """The observer of an engine that nobody watches."""
