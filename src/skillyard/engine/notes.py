"""Sentences made of the guest's words about a run beside its result."""

from __future__ import annotations

from collections.abc import Iterator

from skillyard.domain.frames import Notes

NO_NOTES = Notes()

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


def sentences(notes: Notes) -> Iterator[str]:
    """Yields at most one sentence about each thing."""
    if notes.script:
        yield "the code ran as a script, and no function 'main' was called"
    if notes.lost:
        yield "files in /workspace/out, if there were any, are lost: the sandbox ended with the program"
    if notes.skipped:
        files = ", ".join(f"{path} ({_WHY.get(why, 'refused')})" for path, why in notes.skipped)
        yield f"not sent from /workspace/out: {files}"
    if notes.others:
        more = ", …" if notes.more else ""
        yield f"not kept: {', '.join(notes.others)}{more}; write files that are to come back to /workspace/out"
