"""How a run ended. An outcome is a fact about foreign code; exceptions mean that our machinery failed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
    """What a process tree used, as the kernel counted it. ``None`` where nothing counts it here.

    ``source`` names who counted: ``cgroup``, ``rusage`` or ``sampled``.
    """

    cpu_ms: float | None = None
    peak_memory_bytes: int | None = None
    wall_ms: float | None = None
    startup_ms: float | None = None
    source: str = "rusage"


@dataclass(frozen=True, slots=True)
class Ending:
    """How one process ended: ``code`` with EXIT, ``signal`` with SIGNAL, a sentence in ``reason`` else.

    ``hits`` names limits that the kernel refused something for (``pids``, ``memory``), although the process went on.
    """

    outcome: Outcome
    code: int | None = None
    signal: int | None = None
    reason: str = ""
    usage: Usage = Usage()
    hits: frozenset[str] = frozenset()
