"""One name: which of its bundles are served as which versions, the latest one, and what speaks against the rest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skillyard.domain.skill.name import GUIDE
from skillyard.domain.skill.publication import place_of
from skillyard.domain.skill.semver import latest, newest_first
from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.catalogue.index.reads import Withdrawal
from skillyard.stores.skills.catalogue.index.rows import GUIDE_RANK, PUBLISHED, Entry, Name, Variant, findings_text
from skillyard.stores.skills.tree import shown


@dataclass(frozen=True, slots=True)
class Shelf:
    """``name`` is None when nothing is served; ``refusals`` are findings as text by the bundle's id, empty for none."""

    name: Name | None
    refusals: Mapping[int, str]


def arrange(bundles: Sequence[tuple[int, Entry]], withdrawn: Mapping[str, Withdrawal], pinned: str | None) -> Shelf:
    """``bundles`` of one name in the order in which they are found: of several with one version the first is served.
    The guide's name belongs to the built-in bundle alone. ``withdrawn`` by the version without build metadata."""
    taken: dict[str, tuple[int, Entry]] = {}
    refusals = {}
    for bundle, entry in bundles:
        refusal = _refusal(entry, withdrawn) or _shadowed(entry, taken)
        refusals[bundle] = findings_text([refusal] if refusal else [])
        if refusal is None:
            taken.setdefault(place_of(entry.version or ""), (bundle, entry))
    return Shelf(_served(taken, pinned), refusals)


def weight(name: Name | None) -> int:
    """What a name adds to the catalogue's revision, which is the sum over all names: whatever was changed and in
    whatever order, the same skills have the same revision."""
    if name is None:
        return 0
    served = [name.name, name.latest, [[variant.version, variant.digest] for variant in name.versions]]
    return int.from_bytes(hashlib.sha256(json.dumps(served).encode()).digest()[:16], "big")


def _refusal(entry: Entry, withdrawn: Mapping[str, Withdrawal]) -> Finding | None:
    where = shown(entry.location)
    if entry.name == GUIDE and entry.rank != GUIDE_RANK:
        return Finding("error", where, 0, "guide-reserved", f"'{GUIDE}' is built in and stays as it is")
    gone = withdrawn.get(place_of(entry.version or ""))
    if gone is not None:
        message = f"{entry.name} {entry.version} was withdrawn and is served from nowhere"
        return Finding("warning", where, 0, "withdrawn", message)
    return None


def _shadowed(entry: Entry, taken: Mapping[str, tuple[int, Entry]]) -> Finding | None:
    first = taken.get(place_of(entry.version or ""))
    if first is None:
        return None
    level = "warning" if first[1].digest == entry.digest else "error"
    if entry.rank == PUBLISHED and level == "warning":
        return None
    message = f"{entry.name} {entry.version} comes from {shown(first[1].location)}, which is found first"
    return Finding(level, shown(entry.location), 0, "duplicate-version", message)


def _served(taken: Mapping[str, tuple[int, Entry]], pinned: str | None) -> Name | None:
    found = {entry.version or "": (bundle, entry) for bundle, entry in taken.values()}
    if not found:
        return None
    versions = newest_first(found)
    newest = _pinned(found, pinned) or latest(versions) or versions[0]
    entry = found[newest][1]
    variants = tuple(Variant(version, found[version][1].digest or "", found[version][0]) for version in versions)
    return Name(entry.name or "", newest, entry.line, variants)


def _pinned(versions: Mapping[str, object], pinned: str | None) -> str | None:
    if pinned is None:
        return None
    place = place_of(pinned)
    return next((version for version in versions if place_of(version) == place), None)
