"""What the index says of a bundle, of a name, of a withdrawn version."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import cast

from skillyard.domain.skill.publication import place_of
from skillyard.domain.skill.skill import Finding, SkillFormat, SkillKind, SkillLine
from skillyard.stores.skills.catalogue.index.seal import Damaged, opened, sealed
from skillyard.stores.skills.layout import Folder

GUIDE_RANK = 0
FIRST_ROOT = 1
PUBLISHED = 1 << 32
"""Directories of the operator's go before what was published."""
UNPLACED = -1
"""Of a bundle that was there under other settings and was not found yet under these."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One bundle. ``path`` in the file system's own bytes. ``rank`` and ``place`` order bundles as a search finds
    them. ``stamp`` is the signature of the ``paths`` paths in ``watched``, empty when it says nothing. ``name``,
    ``version``, ``digest`` and ``line`` are those of its skill, None and empty when it has none; ``errors`` are
    findings, as JSON."""

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

    @property
    def location(self) -> str:
        return os.fsdecode(self.path)

    def row(self) -> tuple[object, ...]:
        return sealed(astuple(self))

    @classmethod
    def of(cls, row: Sequence[object]) -> Entry:
        """Raises Damaged."""
        return cls(*opened(row))  # type: ignore[arg-type]


def key_of(name: str, version: str) -> bytes:
    """Where a published version stands among paths, all of which begin with ``/``."""
    return f"{name}@{version}".encode()


def name_of(key: bytes) -> str:
    return key.decode().partition("@")[0]


@dataclass(frozen=True, slots=True)
class Variant:
    """A version of a name, and the bundle that it is served from."""

    version: str
    digest: str
    bundle: int


@dataclass(frozen=True, slots=True)
class Name:
    """A name that is served; ``versions`` newest first."""

    name: str
    latest: str
    line: str
    versions: tuple[Variant, ...]

    def row(self) -> tuple[object, ...]:
        versions = [[v.version, v.digest, v.bundle] for v in self.versions]
        return sealed((self.name, self.latest, self.line, json.dumps(versions)))

    @classmethod
    def of(cls, row: Sequence[object]) -> Name:
        """Raises Damaged."""
        name, latest, line, versions = opened(row)
        found = tuple(Variant(*variant) for variant in json.loads(str(versions)))
        return cls(str(name), str(latest), str(line), found)

    def is_pinned(self, pin: str | None) -> bool:
        """Whether its latest version is what ``pin`` says."""
        return pin is not None and place_of(pin) == place_of(self.latest)

    def variant(self, version: str | None) -> Variant | None:
        wanted = self.latest if version is None else version
        return next((variant for variant in self.versions if variant.version == wanted), None)


def line_text(line: SkillLine) -> str:
    return json.dumps(astuple(line))


def line_of(row: Sequence[object]) -> SkillLine:
    """The line of a row of ``names``. Raises Damaged."""
    name, version, kind, form, namespace, description, short, tags = json.loads(str(opened(row)[2]))
    return SkillLine(name, version, SkillKind(kind), SkillFormat(form), namespace, description, short, tuple(tags))


def folder_row(root: int, path: str, folder: Folder) -> tuple[object, ...]:
    served = None if folder.served == folder.bundles else folder.served
    note = findings_text([folder.note] if folder.note else [])
    listing = json.dumps([folder.folders, folder.bundles, served, folder.links, note])
    return sealed((root, os.fsencode(path), folder.stamp, listing))


def folder_of(row: Sequence[object]) -> tuple[str, Folder]:
    """The path and what it is. Raises Damaged."""
    _, path, stamp, listing = opened(row)
    folders, bundles, served, links, note = json.loads(str(listing))
    found = tuple(map(sys.intern, bundles))
    shown = found if served is None else tuple(served)
    noted = next(iter(findings_of(note)), None)
    folder = Folder(cast("bytes", stamp), tuple(map(sys.intern, folders)), found, shown, tuple(links), noted)
    return os.fsdecode(cast("bytes", path)), folder


def findings_text(findings: Iterable[Finding]) -> str:
    """Empty when there are none."""
    found = [[f.level, f.file, f.line, f.rule, f.message, f.mend] for f in findings]
    return json.dumps(found) if found else ""


def findings_of(text: str) -> list[Finding]:
    """Raises Damaged."""
    try:
        return [Finding(*values) for values in json.loads(text)] if text else []
    except (ValueError, TypeError) as error:
        raise Damaged("findings that cannot be read") from error
