"""Names and their versions: the bundles that are served, and the reasons why others are not."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from time import gmtime, strftime

from skillyard.domain.errors import SkillNotFound
from skillyard.domain.skill.name import GUIDE
from skillyard.domain.skill.publication import place_of
from skillyard.domain.skill.semver import is_version, latest, newest_first
from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.catalogue.rows import (
    GUIDE_RANK,
    LATEST,
    PIN,
    PUBLISHED,
    SERVED,
    WITHDRAWN,
    Damaged,
    Entry,
    findings_text,
)
from skillyard.stores.skills.tree import shown
from skillyard.values import dataclass


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


def arranged(entries: Sequence[Entry]) -> list[Entry]:
    """Returns the entries of one name with their states and refusals.

    They come in the order in which a search finds them: of several bundles with one version the first is served. The
    guide's name belongs to the built-in bundle alone."""
    withdrawn = {entry.version_key for entry in entries if entry.rank == WITHDRAWN}
    pinned = next((entry.version for entry in entries if entry.rank == PIN), None)
    taken: dict[str, Entry] = {}
    refusals: dict[bytes, Finding] = {}
    for entry in entries:
        if entry.rank > PUBLISHED:
            continue
        refusal = _refusal(entry, withdrawn) or _shadowed(entry, taken)
        if refusal is None:
            taken.setdefault(entry.version_key, entry)
        else:
            refusals[entry.path] = refusal
    states = {entry.path: SERVED for entry in taken.values()}
    if newest := _latest(taken, pinned):
        states[newest.path] = LATEST
    texts = {path: findings_text([refusal]) for path, refusal in refusals.items()}
    return [replace(entry, state=states.get(entry.path, ""), refusal=texts.get(entry.path, "")) for entry in entries]


def _refusal(entry: Entry, withdrawn: Collection[str]) -> Finding | None:
    if entry.name == GUIDE and entry.rank != GUIDE_RANK:
        return Finding("error", _shown(entry), 0, "guide-reserved", f"'{GUIDE}' is built in and stays as it is")
    if entry.version_key in withdrawn:
        message = f"{entry.name} {entry.version} was withdrawn and is served from nowhere"
        return Finding("warning", _shown(entry), 0, "withdrawn", message)
    return None


def _shadowed(entry: Entry, taken: Mapping[str, Entry]) -> Finding | None:
    first = taken.get(entry.version_key)
    if first is None:
        return None
    level = "warning" if first.digest == entry.digest else "error"
    if entry.rank == PUBLISHED and level == "warning":
        return None
    message = f"{entry.name} {entry.version} comes from {_shown(first)}, which is found first"
    return Finding(level, _shown(entry), 0, "duplicate-version", message)


def _shown(entry: Entry) -> str:
    return shown(os.fsdecode(entry.path))


def _latest(taken: Mapping[str, Entry], pinned: str | None) -> Entry | None:
    if pinned is not None and place_of(pinned) in taken:
        return taken[place_of(pinned)]
    found = {entry.version or "": entry for entry in taken.values()}
    versions = newest_first(found)
    return found[latest(versions) or versions[0]] if versions else None


def missing(entries: Sequence[Entry], name: str, version: str | None) -> SkillNotFound:
    """Returns why a name is not served, or not in that version; ``entries`` are all of the name."""
    withdrawn = {entry.version or "": entry for entry in entries if entry.rank == WITHDRAWN}
    wanted = place_of(version) if version and is_version(version) else None
    gone = next((entry for entry in withdrawn.values() if entry.version_key == wanted), None)
    if gone is not None:
        return SkillNotFound("version", _withdrawn_rule(name, gone), skill=name, withdrawn=True)
    found = Name.of(entries)
    if found is None and withdrawn:
        rule = f"every version of '{name}' was withdrawn; the newest: " if len(withdrawn) > 1 else ""
        rule += _withdrawn_rule(name, withdrawn[newest_first(withdrawn)[0]])
        return SkillNotFound("name", rule, skill=name, withdrawn=True)
    if found is None or version is None:
        return SkillNotFound("name", f"no skill '{name[:256]}'", skill=name[:256])
    have = ", ".join(islice(found.by_version, 10))
    rule = f"the skill '{name}' has no version '{version[:128]}'; it has {have}"
    return SkillNotFound("version", rule, skill=name)


def _withdrawn_rule(name: str, gone: Entry) -> str:
    """Returns a text that says when and why a version was withdrawn."""
    at, reason = json.loads(gone.line)
    when = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(at))
    return f"version {gone.version} of '{name}' was withdrawn on {when}" + (f": {reason}" if reason else "")
