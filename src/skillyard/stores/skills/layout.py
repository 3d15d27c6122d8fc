"""Finding bundles below a directory.

``<root>/<dotted.name>/``, ``<root>/<name>/<version>/``, Agent Skills directories, folders of any of these, and a root
that is a bundle itself. What is below a bundle belongs to it and is not searched.

A root with one of :data:`HOMES` is a project, or somebody's home: these are searched, and its ``skills``, and none of
its other files. Names that begin with a dot are searched nowhere else, but for :data:`SHELVES`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from skillyard.domain.bundle import is_excluded
from skillyard.domain.skill import Finding
from skillyard.stores.skills.stamps import Watched, stamp
from skillyard.stores.skills.tree import shown

MARKS = ("skill.toml", "SKILL.md")
HOMES = (".agents/skills", ".claude/skills")
"""Where clients keep Agent Skills, in the order of precedence (agentskills.io, client implementation)."""
SHELVES = frozenset({".curated", ".experimental", ".system"})
"""Folders of skills in repositories."""


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """How far a search goes: ``depth`` directories below the root, ``directories`` altogether."""

    depth: int = 6
    directories: int = 20_000


@dataclass(slots=True)
class Scan:
    """Bundles in the order of their paths, and the stamps that change when there may be others."""

    bundles: list[Path] = field(default_factory=list)
    watched: Watched = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def scan(root: Path, limits: ScanLimits) -> Scan:
    """Directories that are links are followed, each real directory is visited once."""
    result = Scan()
    if not root.is_dir():
        result.watched[str(root), True] = stamp(str(root), True)
        result.findings.append(Finding("warning", shown(str(root)), 0, "root-missing", "is no directory"))
        return result
    visited: set[tuple[int, int]] = set()
    for start in _starts(root, result):
        _visit(start, 0, limits, result, visited)
    return result


def _starts(root: Path, result: Scan) -> list[Path]:
    """Where a project keeps its skills; the root itself when it is none."""
    for place in (root, *(root / home.partition("/")[0] for home in HOMES)):
        result.watched[str(place), True] = stamp(str(place), True)
    if any((root / mark).exists() for mark in MARKS):
        return [root]
    homes = [root / home for home in HOMES if (root / home).is_dir()]
    if not homes:
        return [root]
    searched = [place for place in (*homes, root / "skills") if place.is_dir()]
    names = ", ".join(str(place.relative_to(root)) for place in searched)
    note = f"is a project: skills are looked for in {names} and nowhere else in it"
    result.findings.append(Finding("note", shown(str(root)), 0, "scan-project", note))
    return searched


def _visit(directory: Path, depth: int, limits: ScanLimits, result: Scan, visited: set[tuple[int, int]]) -> None:
    if not _is_new(directory, limits, result, visited):
        return
    result.watched[str(directory), True] = stamp(str(directory), True)
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208 - names are enough
    except OSError as error:
        _note(result, directory, "unreadable", f"cannot be read: {error.strerror}")
        return
    if any(mark in names for mark in MARKS):
        result.bundles.append(directory)
        return
    folders = [directory / name for name in names if _is_folder(directory, name)]
    if depth == limits.depth and folders:
        _note(result, directory, "scan-depth", f"lies {depth} directories deep: what is below it is not searched")
        return
    for folder in folders:
        _visit(folder, depth + 1, limits, result, visited)


def _is_new(directory: Path, limits: ScanLimits, result: Scan, visited: set[tuple[int, int]]) -> bool:
    try:
        found = directory.stat()
    except OSError:
        return False
    if len(visited) >= limits.directories:
        if not any(finding.rule == "scan-directories" for finding in result.findings):
            message = f"the search ends here, after {limits.directories} directories"
            _note(result, directory, "scan-directories", message)
        return False
    identity = (found.st_dev, found.st_ino)
    fresh = identity not in visited
    visited.add(identity)
    return fresh


def _is_folder(directory: Path, name: str) -> bool:
    hidden = name.startswith(".") and name not in SHELVES
    return not hidden and not is_excluded(name) and (directory / name).is_dir()


def _note(result: Scan, directory: Path, rule: str, message: str) -> None:
    result.findings.append(Finding("warning", shown(str(directory)), 0, rule, message))
