"""Why a run failed, as ``error`` tells it (skills-protocol §4, rows 7, 11 and 12)."""

from __future__ import annotations

import errno
import re
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from skillyard.config.packages import EnvironmentSettings, PackagesSettings
from skillyard.domain.review.python_words import IMPORTED_AS
from skillyard.domain.sandbox.frames import Failure as Raised
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import ERROR_TYPES, Ending, Outcome
from skillyard.engine.packages.asked import required_name, why_refused
from skillyard.engine.secrets.redact import NOTHING, Redaction
from skillyard.engine.text import clean, first, lines, shorten
from skillyard.values import dataclass

MAX_MESSAGE = 2048
MAX_TRACEBACK = 2048
SUMMARY_CHARACTERS = 280
MAX_GUEST_MESSAGE = 8192
"""Characters above which the guest cuts a message."""

_HEAD = 640
_MAX_REASON = 1000


class LeftBehind(Exception):
    """The run goes on, and this server drives it no more: its lease or the store is gone."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run failed, ready for ``error``; ``reason`` goes into the record."""

    type: str
    message: str
    outcome: Outcome | None = None
    traceback: str = ""

    def as_dict(self, redaction: Redaction = NOTHING) -> dict[str, str]:
        """Returns the error for the record; a type whose name holds a secret becomes ``Exception``."""
        error = {
            "type": self.type if redaction.text(self.type) == self.type else "Exception",
            "message": redaction.cut(self.message, lambda text: shorten(text, MAX_MESSAGE)),
        }
        if self.traceback:
            error["traceback"] = redaction.cut(self.traceback, lines(MAX_TRACEBACK, _HEAD))
        return error

    def summary(self, redaction: Redaction = NOTHING) -> str:
        return redaction.cut(self.message, lambda text: _summary(self.as_dict(redaction)["type"], text))

    def reason(self, redaction: Redaction = NOTHING, also: str = "") -> str:
        """Returns the reason for the record, with the further fault ``also``."""
        return redaction.cut("; ".join(filter(None, (self.message, also))), first(_MAX_REASON))


def _summary(kind: str, message: str) -> str:
    lines = message.strip().splitlines()
    return f"{kind}: {lines[0] if lines else 'no message'}"[:SUMMARY_CHARACTERS]


def cancelled(reason: str) -> Failure:
    message = f"the run was cancelled: {reason}" if reason else "the run was cancelled"
    return Failure(ERROR_TYPES[Outcome.CANCELLED], clean(message), Outcome.CANCELLED)


class Refused(Exception):
    """A run that fails before it starts. ``type`` is one of the reserved error types (skills-protocol §4)."""

    def __init__(self, type_: str, message: str) -> None:
        super().__init__(message)
        self.type = type_
        self.message = message


_FORK_ERRORS = ("BlockingIOError", "RuntimeError")
_NO_FORK = ("[Errno 11] Resource temporarily unavailable", "can't start new thread")
_COMMAND_FAILED = "CalledProcessError"
"""How Python tells of a shell that could not fork."""
_NO_MODULE = re.compile(r"No module named '([A-Za-z_]\w{0,99})(?:\.[\w.]*)?'")
_SAID = ("over the ", "ended by signal ")
"""The start of a backend's reasons that repeat the message."""
_MOST_LAST = 300
_FULL = (errno.ENOSPC, errno.EFBIG)
_NO_MEMORY = ("MemoryError", "_ArrayMemoryError")
"""The built-in one, and numpy's, which is a subclass."""


def ended_by(ending: Ending, limits: Limits, mends: Mapping[Outcome, str] | None = None) -> Failure:
    """The failure of a process that ended without a result of its own. ``mends`` are remedies in other words."""
    message = _MESSAGES[ending.outcome](ending, limits)
    if ending.reason and ending.outcome is not Outcome.EXIT and not ending.reason.startswith(_SAID):
        message = f"{message}: {ending.reason}"
    message += _mend(ending.outcome, mends or _MENDS)
    return Failure(ERROR_TYPES[ending.outcome], clean(message), ending.outcome)


def raised(said: Raised, redaction: Redaction, hits: frozenset[str], limits: Limits) -> Failure:
    """Returns the failure that the guest reports, without secrets. The guest knows none, and cuts long texts."""
    head, rest = said.message[:MAX_GUEST_MESSAGE], said.message[MAX_GUEST_MESSAGE:]
    message = redaction.text(head, whole=False) + redaction.text(rest) if rest else redaction.text(head)
    error = replace(said, message=message, traceback=redaction.text(said.traceback))
    limit = _limit_behind(error, hits)
    if limit is not None:
        own = _MESSAGES[limit](Ending(limit), limits)
        message = (f"{own}: {error.message}" if error.message else own) + _mend(limit, _MENDS)
        return Failure(ERROR_TYPES[limit], message, limit, error.traceback)
    return Failure(error.type, error.message, Outcome.EXIT, error.traceback)


def lacking(
    failure: Failure, environments: Mapping[str, EnvironmentSettings], packages: PackagesSettings, *, skill: bool
) -> Failure:
    """Returns the failure with the remedy for a missing package."""
    found = _NO_MODULE.match(failure.message) if failure.type == "ModuleNotFoundError" else None
    if found is None or found[1] in sys.stdlib_module_names:
        return failure
    package = min((name for name, modules in IMPORTED_AS.items() if found[1] in modules), key=len, default=found[1])
    if skill:
        return replace(failure, message=f"{failure.message}; name {package!r} in the dependencies of the skill")
    having = [name for name, e in environments.items() if package in map(required_name, e.packages)]
    environment = f"environment={having[0]!r}, which has it" if having else ""
    if refused := why_refused((package,), packages):
        mend = f"ask for {environment}" if having else f"do without it, or ask the operator: {refused}"
    else:
        mend = f"ask for it with packages=[{package!r}]" + (f", or for {environment}" if having else "")
    return replace(failure, message=f"{failure.message}; {mend}")


def with_stack(failure: Failure, stack: str) -> Failure:
    """Returns the failure of a program that was ended, with the place where it was."""
    if not stack or failure.outcome is not Outcome.TIMEOUT:
        return failure
    lines = [line.strip() for line in stack.partition("\nStack ")[0].splitlines()[1:]]
    last = next((line for line in reversed(lines) if not line.startswith('File "<')), "")
    where = f" (it was at: {last[:_MOST_LAST]})" if last else ""
    return replace(failure, message=failure.message + where, traceback=stack)


def _limit_behind(error: Raised, hits: frozenset[str]) -> Outcome | None:
    """Returns the limit that an exception of the code stands for.

    A full disk, a full process table and exhausted memory reach the code as exceptions. One that the code catches is
    not reported.
    """
    if error.errno in _FULL:
        return Outcome.DISK
    if error.type in _NO_MEMORY or error.errno == errno.ENOMEM or "memory" in hits:
        return Outcome.MEMORY
    if error.message.startswith(_NO_FORK) and (error.type in _FORK_ERRORS or "pids" in hits):
        return Outcome.PROCESSES
    if error.type == _COMMAND_FAILED and "pids" in hits:
        return Outcome.PROCESSES
    return None


def _mend(outcome: Outcome, mends: Mapping[Outcome, str]) -> str:
    return f"; {mend}" if (mend := mends.get(outcome) or _MENDS.get(outcome)) else ""


def signal_name(number: int | None) -> str:
    """Returns the name of a signal."""
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


_MESSAGES: dict[Outcome, Callable[[Ending, Limits], str]] = {
    Outcome.EXIT: lambda e, _: f"the process exited with code {e.code} before the function returned",
    Outcome.SIGNAL: lambda e, _: f"the process was ended by {signal_name(e.signal)}",
    Outcome.TIMEOUT: lambda _, limits: f"the run took longer than its timeout of {limits.timeout_ms} ms",
    Outcome.MEMORY: lambda _, limits: f"the run used more than its memory limit of {limits.memory_mb} MiB",
    Outcome.PROCESSES: lambda _, limits: f"the run started more than its limit of {limits.pids} processes",
    Outcome.DISK: lambda _, limits: f"the run wrote more than its disk limit of {limits.disk_mb} MiB",
    Outcome.OUTPUT: lambda _, __: "the run wrote more output than is allowed",
    Outcome.CANCELLED: lambda _, __: "the run was cancelled",
    Outcome.LOST: lambda _, __: "the sandbox was lost",
}

_MENDS = {
    Outcome.EXIT: "return from the function, or end with sys.exit(0)",
    Outcome.SIGNAL: "a crash comes from native code: give it less at once, or use another version of the package",
    Outcome.TIMEOUT: "ask for more with timeout_ms, or do less in one run",
    Outcome.MEMORY: "ask for more with limits.memory_mb, or work on the data piece by piece",
    Outcome.PROCESSES: "start fewer at once, or ask for more with limits.pids",
    Outcome.DISK: "write less, or ask for more with limits.disk_mb",
    Outcome.OUTPUT: "print less, and write large data to files in /workspace/out or to runtime.blobs",
    Outcome.LOST: "run it again",
}
"""The remedy of each outcome in the words of the request."""
