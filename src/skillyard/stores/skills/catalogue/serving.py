"""Which bundles of a name are served, kept true to the index. All of it blocks, for one thread at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from skillyard.domain.skill.name import GUIDE
from skillyard.domain.skill.publication import place_of
from skillyard.domain.skill.semver import latest, newest_first
from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.catalogue.rows import (
    GUIDE_RANK,
    LATEST,
    PIN,
    PUBLISHED,
    SERVED,
    WITHDRAWN,
    Entry,
    findings_text,
)
from skillyard.stores.skills.catalogue.table import Table
from skillyard.stores.skills.tree import shown

Tell = Callable[[Collection[str] | None], None]
"""Called with the names whose skills may have changed, None for all, in the thread that changed them."""


class Serving:
    """``tell`` is called after each change. ``bundles`` of directories are known, and ``paths`` watched for them."""

    def __init__(self, table: Table, tell: Tell) -> None:
        self._table = table
        self._tell = tell
        table.load_revision()
        self.bundles, self.paths = table.sizes()

    @contextmanager
    def changed(self) -> Iterator[set[str]]:
        """A transaction. The names that are put into the set are arranged anew at its end."""
        names: set[str] = set()
        with self._table.transaction():
            yield names
            for name in names:
                before = self._table.of_name(name)
                for old, new in zip(before, arranged(before), strict=True):
                    if old != new:
                        self._table.put(new)
        self.bundles, self.paths = self._table.sizes()
        self._tell(names)


def arranged(entries: Sequence[Entry]) -> list[Entry]:
    """Returns the entries of one name with their states and refusals.

    They come in the order in which they are found: of several bundles with one version the first is served. The guide's
    name belongs to the built-in bundle alone."""
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
    return [
        replace(
            entry,
            state=states.get(entry.path, ""),
            refusal=findings_text([refusals[entry.path]] if entry.path in refusals else []),
        )
        for entry in entries
    ]


def _refusal(entry: Entry, withdrawn: Collection[str]) -> Finding | None:
    where = shown(entry.location)
    if entry.name == GUIDE and entry.rank != GUIDE_RANK:
        return Finding("error", where, 0, "guide-reserved", f"'{GUIDE}' is built in and stays as it is")
    if entry.version_key in withdrawn:
        message = f"{entry.name} {entry.version} was withdrawn and is served from nowhere"
        return Finding("warning", where, 0, "withdrawn", message)
    return None


def _shadowed(entry: Entry, taken: Mapping[str, Entry]) -> Finding | None:
    first = taken.get(entry.version_key)
    if first is None:
        return None
    level = "warning" if first.digest == entry.digest else "error"
    if entry.rank == PUBLISHED and level == "warning":
        return None
    message = f"{entry.name} {entry.version} comes from {shown(first.location)}, which is found first"
    return Finding(level, shown(entry.location), 0, "duplicate-version", message)


def _latest(taken: Mapping[str, Entry], pinned: str | None) -> Entry | None:
    if pinned is not None and place_of(pinned) in taken:
        return taken[place_of(pinned)]
    found = {entry.version or "": entry for entry in taken.values()}
    versions = newest_first(found)
    return found[latest(versions) or versions[0]] if versions else None
