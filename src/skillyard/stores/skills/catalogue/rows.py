"""The rows of the catalogue's index: bundles with what becomes of them, and directories that were searched."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import cast

from skillyard.domain.skill.publication import place_of
from skillyard.domain.skill.semver import newest_first
from skillyard.domain.skill.skill import Finding, SkillFormat, SkillKind, SkillLine
from skillyard.stores.skills.catalogue.directories import Folder

GUIDE_RANK = 0
FIRST_ROOT = 1
PUBLISHED = 1 << 32
"""Directories of the operator's go before what was published."""
WITHDRAWN = PUBLISHED + 1
"""Of a publication that is not served any more: ``line`` holds when and why."""
PIN = PUBLISHED + 2
"""Of the version that an operator made a name's latest one."""
UNPLACED = -1
"""Of a bundle that was there under other settings and was not found yet under these."""

SERVED, LATEST = "served", "latest"
_SUM = 1 << 128


class Damaged(Exception):
    """The index holds what was never written to it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One bundle. ``path`` in the file system's own bytes, for a publication :func:`key_of`. ``rank`` and ``place``
    order bundles as a search finds them. ``stamp`` is the signature of the ``paths`` paths in ``watched``, empty when
    it says nothing. ``name``, ``version``, ``digest`` and ``line`` are those of its skill, None and empty when it has
    none; ``errors`` are findings, as JSON. ``state`` is SERVED, LATEST (served, and its name's latest version) or
    empty; ``refusal`` is the finding that says why another bundle is served instead."""

    path: bytes
    rank: int
    place: bytes
    stamp: bytes
    watched: str
    paths: int
    name: str | None
    version: str | None
    digest: str | None
    line: str
    errors: str
    state: str = ""
    refusal: str = ""

    @property
    def location(self) -> str:
        return os.fsdecode(self.path)

    @property
    def version_key(self) -> str:
        """Equal for versions that differ in build metadata only: one of them is served."""
        return place_of(self.version or "")

    def row(self) -> tuple[object, ...]:
        return sealed(astuple(self))

    @classmethod
    def of(cls, row: Sequence[object]) -> Entry:
        """Raises Damaged."""
        return cls(*opened(row))  # type: ignore[arg-type]

    def weight(self) -> int:
        """Returns what the bundle adds to the catalogue's revision, which is the sum over all bundles: whatever was
        changed and in whatever order, the same skills have the same revision."""
        if not self.state:
            return 0
        served = json.dumps([self.name, self.version, self.digest, self.state])
        return int.from_bytes(hashlib.sha256(served.encode()).digest()[:16], "big")


COLUMNS = tuple(column.name for column in fields(Entry))
_LINE = COLUMNS.index("line")


def added(revision: int, before: Entry | None, after: Entry | None) -> int:
    """Returns the revision once ``after`` stands in the place of ``before``."""
    return (revision + (after.weight() if after else 0) - (before.weight() if before else 0)) % _SUM


@dataclass(frozen=True, slots=True)
class Name:
    """A name that is served. ``by_version`` holds its versions, newest first."""

    latest: str
    is_pinned: bool
    by_version: Mapping[str, Entry]

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Name | None:
        """Returns None when none of a name's entries is served. Raises Damaged."""
        found = {entry.version or "": entry for entry in entries if entry.state}
        if not found:
            return None
        latest = [version for version, entry in found.items() if entry.state == LATEST]
        if len(latest) != 1:
            raise Damaged("a name without one latest version")
        pinned = any(entry.rank == PIN and entry.version_key == place_of(latest[0]) for entry in entries)
        return cls(latest[0], pinned, {version: found[version] for version in newest_first(found)})

    def entry(self, version: str | None) -> Entry | None:
        return self.by_version.get(self.latest if version is None else version)


def key_of(name: str, version: str) -> bytes:
    """Returns where a published version stands among paths, all of which begin with ``/``."""
    return f"{name}@{version}".encode()


def name_of(key: bytes) -> str:
    return key.decode().partition("@")[0]


def note_of(rank: int, name: str, version: str, line: str = "") -> Entry:
    """Returns what a publication store says of a name: a pin, or a version that was withdrawn."""
    key = key_of(name, "" if rank == PIN else version)
    return Entry(key, rank, key, b"", "[[],[]]", 0, name, version, None, line, "")


def line_text(line: SkillLine) -> str:
    return json.dumps(astuple(line))


def line_of(row: Sequence[object]) -> SkillLine:
    """Returns the line of an entry's row. Raises Damaged."""
    name, version, kind, form, namespace, description, short, tags = json.loads(str(opened(row)[_LINE]))
    return SkillLine(name, version, SkillKind(kind), SkillFormat(form), namespace, description, short, tuple(tags))


def folder_row(root: int, path: str, folder: Folder) -> tuple[object, ...]:
    served = None if folder.served == folder.bundles else folder.served
    note = findings_text([folder.note] if folder.note else [])
    listing = json.dumps([folder.folders, folder.bundles, served, folder.links, note])
    return sealed((root, os.fsencode(path), folder.stamp, listing))


def folder_of(row: Sequence[object]) -> tuple[str, Folder]:
    """Returns the path and the directory. Raises Damaged."""
    _, path, stamp, listing = opened(row)
    folders, bundles, served, links, note = json.loads(str(listing))
    found = tuple(map(sys.intern, bundles))
    shown = found if served is None else tuple(served)
    noted = next(iter(findings_of(note)), None)
    folder = Folder(cast("bytes", stamp), tuple(map(sys.intern, folders)), found, shown, tuple(links), noted)
    return os.fsdecode(cast("bytes", path)), folder


def findings_text(findings: Iterable[Finding]) -> str:
    """Returns an empty text when there are none."""
    found = [[f.level, f.file, f.line, f.rule, f.message, f.mend] for f in findings]
    return json.dumps(found) if found else ""


def findings_of(text: str) -> list[Finding]:
    """Raises Damaged."""
    try:
        return [Finding(*values) for values in json.loads(text)] if text else []
    except (ValueError, TypeError) as error:
        raise Damaged("findings that cannot be read") from error


def sealed(values: Sequence[object]) -> tuple[object, ...]:
    """Returns integers, texts, bytes and None with a checksum behind them: SQLite does not notice a bit that turns."""
    return (*values, _checksum(values))


def opened(row: Sequence[object]) -> Sequence[object]:
    """Returns the values of a row that :func:`sealed` made. Raises Damaged."""
    values, checksum = row[:-1], row[-1]
    if checksum != _checksum(tuple(values)):
        raise Damaged("a row differs from what was written")
    return values


def _checksum(values: Sequence[object]) -> bytes:
    return hashlib.blake2b(repr(tuple(values)).encode("utf-8", "surrogatepass"), digest_size=8).digest()
