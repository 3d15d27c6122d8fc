"""Where bundles are looked for below a root, and what a directory there is: a bundle, or a folder of them.

``<root>/<dotted.name>/``, ``<root>/<name>/<version>/``, Agent Skills directories, folders of any of these, and a root
that is a bundle itself. What is below a bundle belongs to it and is not searched.

A root with one of :data:`HOMES` is a project, or somebody's home: these are searched, and its ``skills``, and none of
its other files. Names that begin with a dot are searched nowhere else, but for :data:`SHELVES`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from skillyard.domain.skill.name import is_excluded
from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.catalogue.stamps import Stamp, is_settled, signature, stamp
from skillyard.stores.skills.tree import shown

MARKS = ("skill.toml", "SKILL.md")
HOMES = (".agents/skills", ".claude/skills")
"""Where clients keep Agent Skills, in the order of precedence (agentskills.io, client implementation)."""
SHELVES = frozenset({".curated", ".experimental", ".system"})
"""Folders of skills in repositories."""


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """The reach of a search: ``depth`` directories below the root, ``directories`` altogether."""

    depth: int = 6
    directories: int = 200_000


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory that is no bundle. ``stamp`` is its signature, empty when an equal one would say nothing;
    ``folders`` and ``bundles`` are names in it, ``served`` those bundles to which no path before leads, ``links``
    what may lead elsewhere."""

    stamp: bytes
    folders: tuple[str, ...] = ()
    bundles: tuple[str, ...] = ()
    served: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    note: Finding | None = None


def starts_of(root: str) -> tuple[Sequence[str], Finding | None]:
    """Where a project keeps its skills, and a note of that; the root itself when it is none."""
    homes = [start for home in HOMES if (start := Path(root, home)).is_dir()]
    if not homes or is_bundle(root):
        return [root], None
    searched = [str(start) for start in (*homes, Path(root, "skills")) if start.is_dir()]
    names = ", ".join(os.path.relpath(start, root) for start in searched)
    note = f"is a project: skills are looked for in {names} and nowhere else in it"
    return searched, Finding("note", shown(root), 0, "scan-project", note)


def look(directory: str, *, before: Collection[str] = (), deepest: bool = False) -> Folder | None:
    """Returns the content of ``directory``, None when it is a bundle. ``before`` are entries that were bundles at the
    last look, and whose own stamps tell when that changes. Below the ``deepest`` nothing is searched."""
    now = time.time_ns()
    seen = stamp(directory, True)
    try:
        with os.scandir(directory) as entries:
            found = list(entries)
    except OSError as error:
        stamped = signature([seen]) if is_settled([seen], now) else b""
        return Folder(stamped, note=_note(directory, "unreadable", f"cannot be read: {error.strerror}"))
    if any(entry.name in MARKS for entry in found):
        return None
    links = tuple(sorted(entry.name for entry in found if entry.is_symlink()))
    stamps = [seen, *_stamps(directory, links)]
    stamped = signature(stamps) if is_settled(stamps, now) else b""
    children = sorted((entry for entry in found if _is_folder(entry)), key=lambda entry: entry.name)
    if deepest:
        note = "lies as deep as is searched: what is below it is not"
        return Folder(stamped, links=links, note=_note(directory, "scan-depth", note) if children else None)
    folders, bundles = _sorted_out(children, before)
    return Folder(stamped, folders, bundles, bundles, links)


def folder_signature(directory: str, links: Sequence[str]) -> bytes:
    """Returns the stamp that a folder with these links has as long as nothing in it changes."""
    return signature([stamp(directory, True), *_stamps(directory, links)])


def _stamps(directory: str, links: Sequence[str]) -> list[Stamp | None]:
    """Of what links lead to: it comes and goes without a change of the folder."""
    return [stamp(below(directory, link), True) for link in links]


def _sorted_out(
    children: Sequence[os.DirEntry[str]], before: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Folders and bundles."""
    folders: list[str] = []
    bundles: list[str] = []
    for entry in children:
        known = entry.name in before and not entry.is_symlink()
        (bundles if known or is_bundle(entry.path) else folders).append(sys.intern(entry.name))
    return tuple(folders), tuple(bundles)


def is_bundle(directory: str) -> bool:
    return any(os.path.lexists(below(directory, mark)) for mark in MARKS)


def below(directory: str, name: str) -> str:
    return f"{directory}{name}" if directory.endswith("/") else f"{directory}/{name}"


def place_of(start: int, start_path: str, path: str) -> bytes:
    """Sorts as a search finds: by its starts, then names compared one by one, by code points."""
    inner = path[len(start_path) :].strip("/").replace("/", "\0")
    return bytes([start]) + inner.encode("utf-8", "surrogatepass")


def missing(root: str) -> Finding:
    return _note(root, "root-missing", "is not a directory")


def too_many(directory: str, limit: int) -> Finding:
    return _note(directory, "scan-directories", f"the search ends here, after {limit} directories")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    hidden = entry.name.startswith(".") and entry.name not in SHELVES
    if hidden or is_excluded(entry.name):
        return False
    try:
        return entry.is_dir()
    except OSError:
        return False


def _note(directory: str, rule: str, message: str) -> Finding:
    return Finding("warning", shown(directory), 0, rule, message)
