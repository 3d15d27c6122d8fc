"""One bundle out of a directory, a git checkout or an archive on disk. Nothing of it is executed."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path

from skillyard.domain.archive.names import ArchiveRefused, printable
from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.archives import ArchiveLimits, Unpacked, read_archive
from skillyard.stores.skills.archives.collected import MARKS, Collected, Enough
from skillyard.stores.skills.sources.git_checkout import read_checkout, tracked_marks
from skillyard.stores.skills.sources.git_index import is_checkout
from skillyard.stores.skills.tree import Tree, read_tree

_NAMED = 12


def read_source(
    source: Path, subdirectory: str = "", limits: ArchiveLimits | None = None
) -> tuple[Unpacked | None, list[Finding]]:
    """Returns the bundle in ``source``, and the findings.

    ``subdirectory`` of the bundle is relative, with ``/``. The bundle is None when a finding is an error.

    Of a git checkout (a directory with ``.git``) these are the files that git tracks, as they are now. Nothing of the
    source is executed. Raises OSError when it cannot be read.
    """
    limits = limits or ArchiveLimits()
    inner = posixpath.normpath(subdirectory) if subdirectory else ""
    inner = "" if inner == "." else inner
    if inner.startswith(("/", "../")) or inner == "..":
        refused = ArchiveRefused("archive-traversal", subdirectory, "does not lie in the source")
        return None, [refused.finding()]
    source = source.resolve(strict=True)
    if not source.is_dir():
        with source.open("rb") as archive:
            unpacked, findings = read_archive(archive, limits, below=inner)
        return _with_choice(unpacked, findings, _skills_in(unpacked.tree) if unpacked and not inner else [])
    if is_checkout(source):
        unpacked, findings = read_checkout(source, inner, limits)
        return _with_choice(unpacked, findings, [] if inner else _skills_of(source))
    return _read_directory(source, inner, limits)


def _read_directory(source: Path, inner: str, limits: ArchiveLimits) -> tuple[Unpacked | None, list[Finding]]:
    """With the names that an archive of it may have, since that is how it goes on."""
    place = source / inner if inner else source
    if not place.is_dir() or not place.resolve().is_relative_to(source):
        return None, [Finding("error", printable(str(place)), 0, "no-directory", "is not a directory in the source")]
    tree, findings = read_tree(place, limits.caps)
    if tree is None:
        return None, findings
    collected = Collected(limits)
    try:
        for path, file in tree.files.items():
            if collected.claim(path.encode(), directory=False, size=len(file.data)) is not None:
                collected.add(path, file.data, executable=file.executable)
        return collected.unpacked()
    except ArchiveRefused as refused:
        return None, [*collected.findings, refused.finding()]
    except Enough:
        return None, collected.findings


def _with_choice(
    unpacked: Unpacked | None, findings: list[Finding], skills: Sequence[str]
) -> tuple[Unpacked | None, list[Finding]]:
    """Replaces the bundle by an error when skills lie further down only: one has to be chosen."""
    at_root = unpacked is not None and any(mark in unpacked.tree.files for mark in MARKS)
    inner = [printable(skill) for skill in skills if skill]
    if at_root or not inner:
        return unpacked, findings
    more = f" and {len(inner) - _NAMED} more" if len(inner) > _NAMED else ""
    message = f"is not a skill itself; skills are in {', '.join(inner[:_NAMED])}{more}"
    return None, [Finding("error", ".", 0, "source-choice", message)]


def _skills_of(checkout: Path) -> list[str]:
    try:
        return tracked_marks(checkout, MARKS)
    except ArchiveRefused:
        return []


def _skills_in(tree: Tree) -> list[str]:
    """Relative to the leading directory, when there is one."""
    tops = {path.partition("/")[0] for path in tree.files}
    only = f"{tops.pop()}/" if len(tops) == 1 else ""
    found = {posixpath.dirname(path) for path in tree.files if posixpath.basename(path) in MARKS}
    return sorted(path.removeprefix(only) for path in found)
