"""From the facts of an ended process to ``status``, ``outcome`` and ``error`` (skills-protocol §4, row 11)."""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Callable

from skillyard.domain.limits import Limits
from skillyard.domain.outcome import ERROR_TYPES, Ending, Outcome
from skillyard.engine.channel import Raised
from skillyard.engine.failure import Failure
from skillyard.engine.text import clean

_TYPE_NAME = re.compile(r"[^\W\d]\w{0,127}")
_FORK_ERRORS = ("BlockingIOError", "RuntimeError")
_KEPT = 64 * 1024
_NO_FORK = ("[Errno 11] Resource temporarily unavailable", "can't start new thread")


def ended_by(ending: Ending, limits: Limits) -> Failure:
    """The failure of a process that ended without a result of its own."""
    message = _MESSAGES[ending.outcome](ending, limits)
    if ending.reason and ending.outcome is not Outcome.EXIT:
        message = f"{message}: {ending.reason}"
    return Failure(ERROR_TYPES[ending.outcome], clean(message), ending.outcome)


def raised(error: Raised, hits: frozenset[str]) -> Failure:
    """The failure that the guest reports. All of it is foreign: the name and the sizes are ours to check."""
    name = error.type if _TYPE_NAME.fullmatch(error.type) else "Exception"
    message, traceback = clean(error.message[:_KEPT]), clean(error.traceback[-_KEPT:])
    limit = _limit_behind(name, error, hits)
    if limit is not None:
        return Failure(ERROR_TYPES[limit], message, limit, traceback)
    return Failure(name, message, Outcome.EXIT, traceback)


def _limit_behind(name: str, error: Raised, hits: frozenset[str]) -> Outcome | None:
    """A full disk and a full process table reach the code as exceptions, and are limits all the same."""
    if error.errno == errno.ENOSPC:
        return Outcome.DISK
    if error.message.startswith(_NO_FORK) and (name in _FORK_ERRORS or "pids" in hits):
        return Outcome.PROCESSES
    return None


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


_MESSAGES: dict[Outcome, Callable[[Ending, Limits], str]] = {
    Outcome.EXIT: lambda e, _: f"the process exited with code {e.code} before the function returned",
    Outcome.SIGNAL: lambda e, _: f"the process was ended by {_signal_name(e.signal)}",
    Outcome.TIMEOUT: lambda _, limits: f"the run took longer than its timeout of {limits.timeout_ms} ms",
    Outcome.MEMORY: lambda _, limits: f"the run used more than its memory limit of {limits.memory_mb} MiB",
    Outcome.PROCESSES: lambda _, limits: f"the run started more than its limit of {limits.pids} processes",
    Outcome.DISK: lambda _, limits: f"the run wrote more than its disk limit of {limits.disk_mb} MiB",
    Outcome.OUTPUT: lambda _, __: "the run wrote more output than is allowed",
    Outcome.CANCELLED: lambda _, __: "the run was cancelled",
    Outcome.LOST: lambda _, __: "the sandbox was lost",
}
