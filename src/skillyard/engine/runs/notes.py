"""Sentences made of the guest's words about a run beside its result."""

from __future__ import annotations

from collections.abc import Iterator

from skillyard.domain.sandbox.frames import Notes
from skillyard.engine.runs.text import ends
from skillyard.engine.secrets.redact import NOTHING, Redaction

NO_NOTES = Notes()

_SHORT = ends(100, 60)

_WHY = {
    "name": "its name cannot be passed on",
    "depth": "it lies too deep",
    "kind": "it is not a regular file",
    "unread": "it could not be read",
    "count": "there are too many files",
    "entries": "there are too many files",
    "size": "it is larger than a file may be",
    "together": "the files are together larger than they may be",
}


def sentences(notes: Notes, redaction: Redaction = NOTHING) -> Iterator[str]:
    """Yields at most one sentence about each thing."""
    if notes.script:
        yield "the code ran as a script, and no function 'main' was called"
    if notes.lost:
        yield "files in /workspace/out, if there were any, are lost: the sandbox ended with the program"
    if notes.skipped:
        files = ", ".join(f"{_name(path, redaction)} ({_WHY.get(why, 'refused')})" for path, why in notes.skipped)
        yield f"not sent from /workspace/out: {files}"
    if notes.others:
        names = ", ".join(_name(name, redaction) for name in notes.others) + (", …" if notes.more else "")
        yield f"not kept: {names}; write files that are to come back to /workspace/out"


def _name(text: str, redaction: Redaction) -> str:
    """Returns a file's name to show: secrets go before the cut, behind which they are not found."""
    return "".join(c if c.isprintable() else "\ufffd" for c in redaction.cut(text, _SHORT))
