"""The files of two bundles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from skillyard.domain.diff.change import Change
from skillyard.domain.diff.lines import Budget, unified

MAX_TEXT = 256 * 1024
"""Bytes of a file that is compared line by line."""
MAX_FILE_DIFF = 64 * 1024
MAX_DIFF = 512 * 1024
"""Characters of one file's diff, and of all."""
MAX_LINE = 2000
MAX_STEPS = 1_000_000
"""About a second."""


@dataclass(frozen=True, slots=True)
class FileSide:
    """A file of one version. ``read`` gives its bytes and may raise what the store raises."""

    size: int
    sha256: str
    executable: bool
    read: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class FileChange:
    """Sizes in bytes and executable bits are None on the side where there is no such file.

    ``diff`` is a unified diff without the lines that name files; empty for a removed file, when only the mode changed,
    and when there is none to be had, for the ``reason`` ``binary``, ``too large`` or ``too many``. ``cut``: lines or
    their ends are missing.
    """

    path: str
    change: Change
    old_size: int | None
    new_size: int | None
    old_executable: bool | None
    new_executable: bool | None
    diff: str = ""
    cut: bool = False
    reason: str = ""


class _Room:
    """What all diffs may hold together."""

    def __init__(self) -> None:
        self.characters = MAX_DIFF
        self.budget = Budget(MAX_STEPS)


def diff_files(old: Mapping[str, FileSide], new: Mapping[str, FileSide]) -> list[FileChange]:
    """By path."""
    room = _Room()
    return [change for path in sorted({*old, *new}) for change in _one(path, old.get(path), new.get(path), room)]


def _one(path: str, old: FileSide | None, new: FileSide | None, room: _Room) -> Iterator[FileChange]:
    if old and new and (old.sha256, old.executable) == (new.sha256, new.executable):
        return
    change = Change.CHANGED if old and new else Change.ADDED if new else Change.REMOVED
    text, cut, reason = ("", False, "") if new is None else _compared(old, new, room)
    yield FileChange(
        path,
        change,
        old.size if old else None,
        new.size if new else None,
        old.executable if old else None,
        new.executable if new else None,
        text,
        cut,
        reason,
    )


def _compared(old: FileSide | None, new: FileSide, room: _Room) -> tuple[str, bool, str]:
    if old and old.sha256 == new.sha256:
        return "", False, ""
    if max(old.size if old else 0, new.size) > MAX_TEXT:
        return "", False, "too large"
    if room.characters < MAX_LINE:
        return "", False, "too many"
    before, after = _text(old.read()) if old else "", _text(new.read())
    if before is None or after is None:
        return "", False, "binary"
    text, cut = _bounded(unified(before, after, room.budget), min(MAX_FILE_DIFF, room.characters))
    room.characters -= len(text)
    return text, cut, ""


def _text(data: bytes) -> str | None:
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None


def _bounded(lines: Iterator[str], room: int) -> tuple[str, bool]:
    kept: list[str] = []
    cut = False
    for line in lines:
        short = line[:MAX_LINE]
        cut = cut or len(line) > MAX_LINE
        room -= len(short) + 1
        if room < 0:
            return "".join(f"{text}\n" for text in kept), True
        kept.append(short)
    return "".join(f"{text}\n" for text in kept), cut
