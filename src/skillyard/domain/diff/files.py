"""Compares the files of two bundles, which may be made to be slow to compare.

``difflib`` compares the lines, and a budget bounds its steps: when the budget is spent, all further lines count as
replaced. The diff is right then, too, and longer than it need be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import Match, SequenceMatcher
from itertools import accumulate

from skillyard.domain.diff.declared import Change
from skillyard.values import dataclass

MAX_TEXT = 256 * 1024
"""Bytes of a file that is compared line by line."""
MAX_FILE_DIFF = 64 * 1024
MAX_DIFF = 512 * 1024
"""Characters of one file's diff, and of all."""
MAX_LINE = 2000
MAX_STEPS = 4_000_000
"""Comparisons of two lines for all diffs of one answer: about a second."""
_CONTEXT = 3
_NO_NEWLINE = "\\ No newline at end of file"


@dataclass(frozen=True, slots=True)
class FileSide:
    """A file of one version. ``read`` returns its bytes and may raise the store's errors."""

    size: int
    sha256: str
    executable: bool
    read: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file that differs. Its size in bytes and its executable bit are None where a version does not have it.

    ``diff`` is a unified diff without the lines that name files. It is empty for a removed file, when only the mode
    changed, and for the ``reason`` ``binary``, ``too large`` or ``too many``. ``cut``: lines or their ends are missing.
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


@dataclass(slots=True)
class Room:
    """The characters that all diffs may hold together, and the steps that they may take."""

    characters: int = MAX_DIFF
    steps: int = MAX_STEPS


def diff_files(old: Mapping[str, FileSide], new: Mapping[str, FileSide]) -> list[FileChange]:
    """Returns the changes, ordered by path."""
    room = Room()
    return [change for path in sorted({*old, *new}) for change in _one(path, old.get(path), new.get(path), room)]


def _one(path: str, old: FileSide | None, new: FileSide | None, room: Room) -> Iterator[FileChange]:
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


def _compared(old: FileSide | None, new: FileSide, room: Room) -> tuple[str, bool, str]:
    if old and old.sha256 == new.sha256:
        return "", False, ""
    if max(old.size if old else 0, new.size) > MAX_TEXT:
        return "", False, "too large"
    if room.characters < MAX_LINE:
        return "", False, "too many"
    before, after = _text(old.read()) if old else "", _text(new.read())
    if before is None or after is None:
        return "", False, "binary"
    text, cut = _bounded(unified(before, after, room), min(MAX_FILE_DIFF, room.characters))
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


def unified(old: str, new: str, room: Room) -> Iterator[str]:
    """Yields the lines of the hunks without their ends; none when the texts are equal."""
    before, after = _lines(old), _lines(new)
    for hunk in _Matcher(before, after, room).get_grouped_opcodes(_CONTEXT):
        (_, old_from, _, new_from, _), (_, _, old_to, _, new_to) = hunk[0], hunk[-1]
        yield f"@@ -{_span(old_from, old_to)} +{_span(new_from, new_to)} @@"
        for tag, old_from, old_to, new_from, new_to in hunk:
            if tag == "equal":
                yield from _marked(" ", before[old_from:old_to])
            else:
                yield from _marked("-", before[old_from:old_to])
                yield from _marked("+", after[new_from:new_to])


class _Matcher(SequenceMatcher[str]):
    """Matches equal beginnings and ends first, and stops its search when the steps are spent."""

    def __init__(self, old: Sequence[str], new: Sequence[str], room: Room) -> None:
        super().__init__(None, old, new)
        self._old, self._new = old, new
        self._room = room
        places: Mapping[str, Sequence[int]] = self.b2j  # type: ignore[attr-defined]
        self._costs = [0, *accumulate(1 + len(places.get(line, ())) for line in old)]

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        """Returns a match of the old lines ``alo`` to ``ahi`` with the new lines ``blo`` to ``bhi``."""
        ahi, bhi = len(self._old) if ahi is None else ahi, len(self._new) if bhi is None else bhi
        shorter = min(ahi - alo, bhi - blo)
        same = next((n for n in range(shorter) if self._old[alo + n] != self._new[blo + n]), shorter)
        if same:
            return Match(alo, blo, same)
        same = next((n for n in range(shorter) if self._old[ahi - 1 - n] != self._new[bhi - 1 - n]), shorter)
        if same:
            return Match(ahi - same, bhi - same, same)
        self._room.steps -= self._costs[ahi] - self._costs[alo]
        return super().find_longest_match(alo, ahi, blo, bhi) if self._room.steps >= 0 else Match(alo, blo, 0)


def _lines(text: str) -> list[str]:
    """Splits a text at line feeds alone; a last line without one carries the mark that says so."""
    lines = text.split("\n")
    last = lines.pop()
    return [*lines, f"{last}\n{_NO_NEWLINE}"] if last else lines


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield from f"{mark}{line}".split("\n")


def _span(start: int, end: int) -> str:
    """Returns a span as diff writes it: an empty one names the line before it."""
    return f"{start + 1 if end > start else start},{end - start}"
