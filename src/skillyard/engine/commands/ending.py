"""How a command ended, as its record says it. All that a sandbox tells is hostile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from skillyard.domain.sandbox.frames import Notes, Result, ResultFault
from skillyard.domain.work.command import Command
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import ERROR_TYPES, Ending, Outcome, RunRecord, RunStatus
from skillyard.engine.runs.failure import Failure, ended_by
from skillyard.engine.runs.record import Findings
from skillyard.engine.secrets.redact import Redaction
from skillyard.engine.text import clean

NO_CODE = -1
"""The exit code of a command that did not come to its own end."""
_MOST_RESULT = 4096
_MOST_ERRORS = 16
_LONGEST = 120
_KILLED = 137
_REMEDIES = {
    Outcome.TIMEOUT: "ask for more with timeout_sec",
    Outcome.OUTPUT: "write less to stdout and stderr, and large data to a file that outputs names",
}
_WHY = {
    "missing": "not found",
    "name": "its name cannot be passed on",
    "kind": "it is not a regular file",
    "unread": "it could not be read",
    "count": "there are too many files",
    "entries": "there are too many files",
    "size": "it is larger than a file may be",
    "together": "the files are together larger than they may be",
}


def exit_code(said: object) -> int:
    """Returns the exit code that the sandbox tells; NO_CODE when it tells none."""
    code = _told(said).get("exit_code")
    return code if type(code) is int and 0 <= code <= 255 else NO_CODE


def _told(said: object) -> dict[str, Any]:
    if not isinstance(said, Result) or len(said.raw) > _MOST_RESULT:
        return {}
    try:
        return said.value()
    except ResultFault:
        return {}


def judged(said: Result, ending: Ending, limits: Limits) -> Failure | None:
    """Returns why a command failed that came to its end; None when it succeeded."""
    code = exit_code(said)
    if code == 0:
        return None
    if _told(said).get("not_ready") is True:
        message = "the service was not ready in time; ask for more with startup_timeout_sec, and see its log"
        return Failure(ERROR_TYPES[Outcome.TIMEOUT], message, Outcome.TIMEOUT)
    if code == _KILLED and "memory" in ending.hits:
        return ended_by(Ending(Outcome.MEMORY), limits, _REMEDIES)
    if code == NO_CODE:
        return Failure("SandboxError", "the sandbox did not say how the command ended", Outcome.EXIT)
    return Failure(ERROR_TYPES[Outcome.EXIT], f"the command ended with exit code {code}", Outcome.EXIT)


def cut_short(ending: Ending, limits: Limits) -> Failure:
    """Returns why a command failed that did not come to its end."""
    if ending.outcome in (Outcome.EXIT, Outcome.SIGNAL):
        message = "the program that follows the command was ended inside the sandbox; run it again"
        return Failure(ERROR_TYPES[ending.outcome], message, ending.outcome)
    return ended_by(ending, limits, _REMEDIES)


def concluded(
    record: RunRecord, command: Command, found: Findings, redaction: Redaction, *, withheld: bool
) -> RunRecord:
    """Returns the last record of a command.

    Its ``output`` has the exit code and ``output_errors``, its ``files`` have the names that the caller wanted.
    ``withheld`` says that no file may be shown.
    """
    output: dict[str, Any] = {"exit_code": exit_code(found.said), "output_errors": []}
    if withheld:
        return replace(record, output=output, files=(), notes=())
    made, kept = [], set()
    for file in found.files:
        number, path = _numbered(file["path"])
        if number is None or number >= len(command.outputs):
            continue
        kept.add(number)
        path = command.shown(path)
        filename = command.outputs[number].filename(path)
        made.append({**file, "path": redaction.text(path), "filename": redaction.text(filename)})
    errors = list(_errors(command, found.notes, kept, redaction))
    if len(errors) > _MOST_ERRORS:
        errors[_MOST_ERRORS - 1 :] = [{"path": "…", "error": f"{len(errors) - _MOST_ERRORS + 1} more"}]
    output["output_errors"] = errors
    if record.status is RunStatus.COMPLETED:
        record = replace(record, summary="the command ended with exit code 0")
    return replace(record, output=output, files=tuple(made), notes=())


def _errors(command: Command, notes: Notes, found: set[int], redaction: Redaction) -> Iterator[dict[str, str]]:
    told = set()
    for name, why in notes.skipped:
        number, path = _numbered(name)
        if number is not None and number < len(command.outputs):
            told.add(number)
        yield _error(command.shown(path), _WHY.get(why, "refused"), redaction)
    for number, output in enumerate(command.outputs):
        if number not in found | told:
            yield _error(output.path, "lost with the sandbox" if notes.lost else "not found", redaction)
    if notes.more:
        yield {"path": "…", "error": f"{notes.more} more"}


def _error(path: str, why: str, redaction: Redaction) -> dict[str, str]:
    return {"path": redaction.cut(clean(path), lambda text: text[:_LONGEST]), "error": why}


def _numbered(name: str) -> tuple[int | None, str]:
    """Returns the number of the output that a file belongs to, and its path."""
    number, _, path = name.partition("/")
    return (int(number), path) if number.isascii() and number.isdigit() and len(number) < 4 else (None, name)
