"""The rows of the catalogue's index: one for each bundle, pin and withdrawn version."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields

from skillyard.domain.skill.publication import place_of
from skillyard.domain.skill.skill import Finding, SkillFormat, SkillKind, SkillLine
from skillyard.stores.skills.catalogue.stamps import NO_PATHS, Watch
from skillyard.values import dataclass

GUIDE_RANK = 0
"""The rank of the built-in guide. The roots have the ranks that follow, in the order of precedence."""
PUBLISHED = 1 << 32
"""The rank of publications: the operator's directories go before them."""
WITHDRAWN = PUBLISHED + 1
"""The rank of a publication that was withdrawn: ``line`` holds when and why."""
PIN = PUBLISHED + 2
"""The rank of the version that an operator made the latest one of its name."""

SERVED, LATEST = "served", "latest"


class Damaged(Exception):
    """The index holds a row that was never written to it."""


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a bundle of a directory: ``rank`` and ``place`` order bundles as a search finds them."""

    path: str
    rank: int
    place: bytes

    @property
    def key(self) -> bytes:
        return os.fsencode(self.path)


@dataclass(frozen=True, slots=True)
class Entry:
    """One bundle. ``path`` is in the file system's own bytes, for a publication :func:`key_of`. ``stamp``, ``watched``
    and ``paths`` are its :class:`Watch`. ``name``, ``version``, ``digest`` and ``line`` are those of its skill, None
    and empty when it has none; ``errors`` are findings, as JSON. ``state`` is SERVED, LATEST (served, and its name's
    latest version) or empty; ``refusal`` is the finding that says why another bundle is served instead."""

    path: bytes
    rank: int
    place: bytes
    stamp: bytes = b""
    watched: str = NO_PATHS
    paths: int = 0
    name: str | None = None
    version: str | None = None
    digest: str | None = None
    line: str = ""
    errors: str = ""
    state: str = ""
    refusal: str = ""

    @property
    def at(self) -> Place:
        return Place(os.fsdecode(self.path), self.rank, self.place)

    @property
    def version_key(self) -> str:
        """Equal for versions that differ in build metadata only: one of them is served."""
        return place_of(self.version or "")

    def is_unchanged(self) -> bool:
        """Returns whether the bundle is what it was when the entry was made, by stamps alone."""
        return Watch(self.watched, self.paths, self.stamp).is_at(os.fsdecode(self.path))

    def row(self) -> tuple[object, ...]:
        return sealed(astuple(self))

    @classmethod
    def of(cls, row: Sequence[object]) -> Entry:
        """Raises Damaged."""
        return cls(*opened(row))  # type: ignore[arg-type]

    def weight(self) -> int:
        """Returns the bundle's share of the catalogue's revision. The revision is the sum over all bundles, so that the
        same skills have the same one, whatever was changed and in whatever order."""
        if not self.state:
            return 0
        served = json.dumps([self.name, self.version, self.digest, self.state])
        return int.from_bytes(hashlib.sha256(served.encode()).digest()[:16], "big")


COLUMNS = tuple(column.name for column in fields(Entry))
_LINE, _DIGEST = COLUMNS.index("line"), COLUMNS.index("digest")


def key_of(name: str, version: str) -> bytes:
    """Returns the path of a published version. All other paths begin with ``/``."""
    return f"{name}@{version}".encode()


def name_of(key: bytes) -> str:
    return key.decode().partition("@")[0]


def line_text(line: SkillLine) -> str:
    """Returns the line without its digest, which the entry has."""
    return json.dumps(astuple(line)[:-1])


def line_of(row: Sequence[object]) -> SkillLine:
    """Returns the line of an entry's row. Raises Damaged."""
    values = opened(row)
    name, version, kind, form, namespace, description, short, tags = json.loads(str(values[_LINE]))
    digest = str(values[_DIGEST] or "")
    kinds = SkillKind(kind), SkillFormat(form)
    return SkillLine(name, version, *kinds, namespace, description, short, tuple(tags), digest)


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
    """Returns integers, texts, bytes and None with a checksum behind them: SQLite does not notice a flipped bit."""
    return (*values, _checksum(values))


def opened(row: Sequence[object]) -> Sequence[object]:
    """Returns the values of a row that :func:`sealed` made. Raises Damaged."""
    values, checksum = row[:-1], row[-1]
    if checksum != _checksum(tuple(values)):
        raise Damaged("a row differs from what was written")
    return values


def _checksum(values: Sequence[object]) -> bytes:
    return hashlib.blake2b(repr(tuple(values)).encode("utf-8", "surrogatepass"), digest_size=8).digest()
