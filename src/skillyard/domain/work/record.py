"""The record of a run: written when it begins, and when it has ended."""

from __future__ import annotations

from dataclasses import asdict, field, replace
from enum import StrEnum
from typing import Any

from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.sandbox.frames import START, FramePlace
from skillyard.domain.sandbox.spec import Owner
from skillyard.values import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """``holder`` names a server. ``until`` is in seconds of CLOCK_BOOTTIME, in the boot of the machine that ``boot``
    names: an operator who sets the wall clock ends no lease and prolongs none."""

    holder: str
    boot: str
    until: float

    def held(self, boot: str, now: float) -> bool:
        """Returns whether it is in force at ``now``, in the boot ``boot``. One of another boot never is."""
        return self.boot == boot and now < self.until


class Outcome(StrEnum):
    EXIT = "exit"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    PROCESSES = "processes"
    DISK = "disk"
    OUTPUT = "output"
    CANCELLED = "cancelled"
    LOST = "lost"


ERROR_TYPES: dict[Outcome, str] = {
    Outcome.EXIT: "SystemExit",
    Outcome.SIGNAL: "SignalError",
    Outcome.TIMEOUT: "TimeoutError",
    Outcome.MEMORY: "MemoryLimitExceeded",
    Outcome.PROCESSES: "ProcessLimitExceeded",
    Outcome.DISK: "DiskLimitExceeded",
    Outcome.OUTPUT: "OutputTooLarge",
    Outcome.CANCELLED: "Cancelled",
    Outcome.LOST: "SandboxLost",
}
"""``error.type`` for a run that an outcome ended (skills-protocol §4, row 11)."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of a process tree, as the kernel counted it; None where nothing counts it here.

    ``source`` names the counter: ``cgroup``, ``rusage`` or ``sampled``. ``whole`` says that processor time and memory
    are those of the whole sandbox so far, not of this tree alone.
    """

    cpu_ms: float | None = None
    peak_memory_bytes: int | None = None
    wall_ms: float | None = None
    startup_ms: float | None = None
    source: str = "rusage"
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """How one process ended: ``code`` with EXIT, ``signal`` with SIGNAL, a sentence in ``reason`` else.

    ``hits`` names limits that the kernel refused something for (``pids``, ``memory``), although the process went on.
    ``cut_off`` stands beside LOST where only the connection to the sandbox broke: the process may go on. ``parting``
    says that the sandbox ends with this process, that all in it was told to end, and that the kernel does the rest.
    """

    outcome: Outcome
    code: int | None = None
    signal: int | None = None
    reason: str = ""
    usage: Usage = Usage()
    hits: frozenset[str] = frozenset()
    cut_off: bool = False
    parting: bool = False


class RunKind(StrEnum):
    SKILL = "execute_skill"
    CODE = "run_code"
    COMMAND = "run_cmd"
    TOOL = "tools.call"
    JAIL = "jail"


class RunStatus(StrEnum):
    """The first three are live, the others terminal; terminal is terminal.

    A live run becomes exactly one of the terminal ones, once. A run that is owned by its server has no record before
    it is RUNNING.
    """

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def live(self) -> bool:
        return self is not RunStatus.COMPLETED and self is not RunStatus.FAILED


def check_status(status: str | None) -> None:
    """Raises InvalidInput for a status that does not exist; None stands for any."""
    if status is not None and status not in tuple(RunStatus):
        raise InvalidInput("status", f"must be one of {', '.join(RunStatus)}", shown(status))


@dataclass(frozen=True, slots=True)
class StreamPlaces:
    """The places of both streams of a command in its log, beside a :class:`LogPlace`.

    The byte at its offset belongs to ``stream``. ``given`` bytes of stdout and of stderr behind it are in the parts
    already, and ``covered`` bytes behind those belong to a secret. The parts end in the stream ``written``,
    ``unmarked`` bytes behind its mark.
    """

    stream: str = "stdout"
    given: tuple[int, int] = (0, 0)
    covered: tuple[int, int] = (0, 0)
    written: str = "stdout"
    unmarked: int = 0


BEGIN = StreamPlaces()


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A place in a log, which lies before ``offset`` in so many ``parts``.

    Parts are blobs without secrets. ``covered`` bytes from there on belong to a secret that was taken out. ``dropped``
    bytes before it were never read. ``streams`` are those of a command. Where the log keeps its latest parts alone,
    ``first`` numbers the first that is kept, and ``gone`` bytes of ``size`` lay in those before it.
    """

    offset: int = 0
    covered: int = 0
    parts: int = 0
    dropped: int = 0
    streams: StreamPlaces = BEGIN
    first: int = 0
    gone: int = 0
    size: int = 0


LOG_START = LogPlace()


@dataclass(frozen=True, slots=True)
class Offsets:
    """The output that was taken for good: a driver that attaches goes on from there.

    The blobs before ``channel`` are the record's.
    """

    channel: FramePlace = START
    log: LogPlace = LOG_START


@dataclass(frozen=True, slots=True)
class SecretRef:
    """Names a secret of the run without its value: ``version`` is that of :class:`skillyard.domain.secret.Secret`,
    ``skill`` the one that declares it."""

    name: str
    project: str
    skill: str
    version: str


NOTHING_TAKEN = Offsets()


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Times are UTC seconds since the epoch. ``output`` is at most 4,096 bytes of compact JSON.

    ``environment`` is a name of the operator's settings, followed by ``+`` and the beginning of the digest of the
    environment that was used when skills or code asked for more packages. ``isolation`` is the backend that ran it.
    ``digests`` name what ran (``code``, ``skill``, ``environment``, ``blobs``), so that it can be repeated.
    """

    run_id: str
    kind: RunKind
    principal: str
    status: RunStatus
    created_at: float
    project: str = ""
    skill: str | None = None
    version: str | None = None
    environment: str = "base"
    isolation: str = ""
    outcome: Outcome | None = None
    reason: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    summary: str = ""
    limits: dict[str, Any] = field(default_factory=dict)
    enforced: dict[str, str] = field(default_factory=dict)
    """The level of each wall and limit of its sandbox."""
    guarantees: dict[str, Any] = field(default_factory=dict)
    """The guarantees of its sandbox by name: ``attestor`` and ``evidence``.

    Empty in records of earlier versions.
    """
    usage: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, Any] = field(default_factory=dict)
    output: Any = None
    output_blobs: tuple[str, ...] = ()
    files: tuple[dict[str, Any], ...] = ()
    """The files left in ``/workspace/out``: ``path`` below it, ``blob_id``, ``size``, ``mime``."""
    notes: tuple[str, ...] = ()
    """Sentences about the run beside its result."""
    logs_preview: str = ""
    logs_blob: str | None = None
    error: dict[str, Any] | None = None
    network: dict[str, Any] | None = None
    """The hosts that it might reach, and its connections; None without a network.

    :mod:`skillyard.engine.network.grant` makes it.
    """
    needs: dict[str, Any] | None = None
    """The declared needs of its skills, and the granted part; None when they declare none.

    :mod:`skillyard.engine.skills.run_needs` makes it.
    """
    idempotency_key: str | None = None
    request_digest: str = ""
    sandbox: str | None = None
    """The backend's handle while it runs: how a restart finds it."""
    revision: int = 1
    """The number of the record's writes so far. A write names the revision that it read, and counts it up."""
    owner: Owner = Owner.RUN
    labels: dict[str, str] = field(default_factory=dict)
    """Stay as they were inserted."""
    lease: Lease | None = None
    """The server that drives the run; None for a run that is owned by its server, and for one that nobody drives."""
    deadline: float | None = None
    """Seconds of CLOCK_BOOTTIME, in the boot that the lease names."""
    cancel_requested: str | None = None
    """The reason for which somebody asked it to end."""
    program: str | None = None
    """The id of the process in the sandbox."""
    offsets: Offsets = NOTHING_TAKEN
    blob_prefix: str = ""
    """Begins the ids of the blobs that it makes."""
    secrets: tuple[SecretRef, ...] = ()
    """The secrets that are taken out of its output."""
    agent: str = ""
    """The agent of the project that a command belongs to; empty for other runs."""
    session: str | None = None
    """The alias of the session that it runs in; None for a run with a sandbox of its own."""
    session_life: str | None = None
    """The id of that session's record, once the run has its sandbox."""
    network_session: str | None = None
    """The key of its session of the gate."""
    service: dict[str, Any] | None = None
    """A service's ``ports``, ``restart``, and how it goes: ``ready``, ``restarts``, the last ``exit_code``.

    None for other runs.
    """
    stay: dict[str, Any] | None = None
    """A sandbox that its caller keeps (:class:`skillyard.domain.work.stay.Stay`); None for other runs."""
    interpreter: dict[str, str] | None = None
    """The interpreter of a cell: ``state``, the ``reason`` for a new one, and why its names are ``lost`` since.

    None for other runs.
    """
    max_attempts: int = 1
    """How often a task is started at most, while its sandbox is lost."""
    callback: str | None = None
    """The URL that is told of the end of a task."""
    attempts: tuple[dict[str, Any], ...] = ()
    """The attempts of a task before this one: ``attempt``, ``reason``, ``error_message``, times, ``logs_blob``."""

    def as_dict(self) -> dict[str, Any]:
        """The JSON form, as ``runs show --json`` prints it (skills-protocol §11)."""
        lists = {name: list(getattr(self, name)) for name in ("output_blobs", "files", "notes", "attempts")}
        return asdict(self) | lists

    def seen(self) -> RunRecord:
        """Returns the record as callers see it: a run that is live has no end yet.

        The end of a detached run is stored before its sandbox is destroyed. It holds once no process is left.
        """
        if not self.status.live:
            return self
        return replace(
            self, outcome=None, reason="", ended_at=None, summary="", output=None, logs_blob=None, error=None
        )
