"""Collects the files of an archive within limits, and refuses names that clash."""

from __future__ import annotations

import hashlib
from dataclasses import field

from skillyard.domain.archive.names import ArchiveRefused, check_portable, folded, parts_of, printable
from skillyard.domain.skill.name import EXCLUDED, is_excluded
from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.tree import Caps, Tree, TreeFile, digest_of
from skillyard.values import dataclass

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """The bounds of an archive.

    ``caps`` bound the skill; the others bound the work, entries that are left out (``.git`` …) included.

    ``packed`` bytes of the archive itself; ``unpacked`` bytes and ``entries`` altogether; from ``ratio_from`` unpacked
    bytes on they may be at most ``ratio`` times the archive's.
    """

    caps: Caps = field(default_factory=Caps)
    packed: int = 32 * _MIB
    unpacked: int = 64 * _MIB
    entries: int = 8192
    ratio: int = 200
    ratio_from: int = 4 * _MIB

    def check_packed(self, size: int) -> None:
        """Raises ArchiveRefused."""
        if size > self.packed:
            raise ArchiveRefused("archive-size", "", f"has more than {self.packed} bytes")

    def check_unpacked(self, size: int, packed: int) -> None:
        """Raises ArchiveRefused."""
        if size > self.unpacked:
            raise ArchiveRefused("archive-bytes", "", f"unpacks to more than {self.unpacked} bytes")
        if size > self.ratio_from and size > self.ratio * packed:
            raise ArchiveRefused("archive-ratio", "", f"unpacks to more than {self.ratio} times its {packed} bytes")

    def check_entries(self, count: int) -> None:
        """Raises ArchiveRefused."""
        if count > self.entries:
            raise ArchiveRefused("archive-entries", "", f"has more than {self.entries} entries")


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The tree of an archive. ``stripped`` is the leading directory that was taken off, or empty."""

    tree: Tree
    stripped: str = ""


MARKS = ("SKILL.md", "skill.toml")
"""Files that stand at the root of a bundle."""
MAX_FINDINGS = 20
_NAMED = 8


_EXCLUDED = frozenset(folded(name) for name in EXCLUDED)


def _is_left_out(part: str) -> bool:
    """``.GIT`` too: unpacked on other systems it is ``.git``."""
    return is_excluded(part) or folded(part) in _EXCLUDED


class Enough(Exception):
    """There are so many findings that more of them help nobody."""


@dataclass(slots=True)
class _Name:
    """A name in its directory as it was first spelled; ``inner`` is None for a file."""

    spelled: str
    inner: dict[str, _Name] | None
    explicit: bool = False


@dataclass(slots=True)
class Collected:
    """Takes entries one after another.

    A fault of an entry is kept in ``findings``; a fault of the archive is raised as ArchiveRefused.

    With ``below`` only what lies in that directory is wanted, or in that directory of a leading one.
    """

    limits: ArchiveLimits
    below: tuple[str, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    _files: dict[str, TreeFile] = field(default_factory=dict)
    _root: dict[str, _Name] = field(default_factory=dict)
    _leads: set[tuple[str, ...]] = field(default_factory=set)
    _promised: int = 0
    _count: int = 0
    _directories: int = 0
    _dropped: list[str] = field(default_factory=list)
    _dropped_count: int = 0

    def claim(self, name: bytes, *, directory: bool, size: int) -> str | None:
        """Returns the path for the ``size`` bytes of a file; None when they are not wanted.

        Those of a directory, of files that are never part of a skill and of refused entries are not. Raises
        ArchiveRefused, Enough.
        """
        try:
            parts = parts_of(name, max_depth=self.limits.caps.depth + 1 + 2 * len(self.below))
            if any(_is_left_out(part) for part in parts):
                self._drop(parts)
                return None
            if self.below:
                parts = self._within(parts)
                if not parts:
                    return None
            check_portable(parts)
            self._place(parts, name, directory)
        except ArchiveRefused as refused:
            self.report(refused)
            return None
        if directory:
            return None
        self._count_file(name, size)
        return None if self.findings else "/".join(parts)

    def add(self, path: str, data: bytes, *, executable: bool) -> None:
        """Takes the content that was claimed for ``path``."""
        self._files[path] = TreeFile(data, executable, hashlib.sha256(data).hexdigest())

    def report(self, refused: ArchiveRefused) -> None:
        """Raises Enough."""
        self.findings.append(refused.finding())
        if len(self.findings) >= MAX_FINDINGS:
            raise Enough

    def unpacked(self) -> tuple[Unpacked | None, list[Finding]]:
        """Raises ArchiveRefused."""
        if self.findings:
            return None, self.findings
        if not self._files:
            raise ArchiveRefused("archive-empty", "", "holds no file that can be part of a skill")
        stripped = self._leading_directory()
        files = {path[len(stripped) + 1 :] if stripped else path: self._files[path] for path in sorted(self._files)}
        for path in files:
            if path.count("/") > self.limits.caps.depth:
                message = f"lies deeper than {self.limits.caps.depth} directories"
                raise ArchiveRefused("archive-depth", path, message)
        return Unpacked(Tree(files, digest_of(files)), stripped), list(self._notes(stripped))

    def _place(self, parts: tuple[str, ...], name: bytes, directory: bool) -> None:
        if not parts:
            if not directory:
                raise ArchiveRefused("archive-name", name, "is a file in place of the root")
            return
        here = self._root
        for part in parts[:-1]:
            inner = self._found(here, part, name, directory=True).inner
            assert inner is not None
            here = inner
        last = self._found(here, parts[-1], name, directory=directory)
        if last.explicit:
            raise ArchiveRefused("archive-duplicate", name, "is there twice")
        last.explicit = True

    def _found(self, here: dict[str, _Name], part: str, name: bytes, *, directory: bool) -> _Name:
        key = folded(part)
        known = here.get(key)
        if known is None:
            self._directories += directory
            if self._directories > 4 * self.limits.caps.files:
                raise ArchiveRefused("archive-entries", name, "brings it over the number of directories")
            known = here[key] = _Name(part, {} if directory else None)
        if known.spelled != part:
            message = f"differs only in case or in Unicode's spelling from '{printable(known.spelled)}'"
            raise ArchiveRefused("archive-collision", name, message)
        if (known.inner is not None) != directory:
            raise ArchiveRefused("archive-duplicate", name, "is a file in one place and a directory in another")
        return known

    def _within(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """The rest of a path below ``below``; empty when it lies elsewhere."""
        for lead in (parts[:0], parts[:1]):
            start = len(lead) + len(self.below)
            if parts[len(lead) : start] == self.below:
                self._leads.add(lead)
                if len(self._leads) > 1:
                    message = "is a directory in two places of the archive"
                    raise ArchiveRefused("archive-duplicate", "/".join(self.below), message)
                return parts[start:]
        return ()

    def _count_file(self, name: bytes, size: int) -> None:
        self._count += 1
        self._promised += size
        if self._count > self.limits.caps.files:
            raise ArchiveRefused("archive-files", name, f"brings it over {self.limits.caps.files} files")
        if self._promised > self.limits.caps.bytes:
            raise ArchiveRefused("archive-bytes", name, f"brings it over {self.limits.caps.bytes} bytes")

    def _drop(self, parts: tuple[str, ...]) -> None:
        self._dropped_count += 1
        top = next(i for i, part in enumerate(parts) if _is_left_out(part))
        path = printable("/".join(parts[: top + 1]))
        if path not in self._dropped and len(self._dropped) < _NAMED:
            self._dropped.append(path)

    def _leading_directory(self) -> str:
        tops = {path.partition("/")[0] for path in self._files}
        if len(tops) != 1:
            return ""
        top = tops.pop()
        return top if any(f"{top}/{mark}" in self._files for mark in MARKS) else ""

    def _notes(self, stripped: str) -> list[Finding]:
        notes = []
        if stripped:
            message = f"all files lie in '{printable(stripped)}', which is taken for the skill's directory"
            notes.append(Finding("note", ".", 0, "archive-stripped", message))
        if self._dropped_count:
            names = ", ".join(self._dropped)
            message = f"{self._dropped_count} entries were left out, which are never part of a skill: {names}"
            notes.append(Finding("note", ".", 0, "archive-dropped", message))
        return notes
