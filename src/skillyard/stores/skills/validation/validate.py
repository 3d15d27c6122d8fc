"""Validates one bundle on disk, for the command line."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.skill.skill import Finding
from skillyard.stores.archives import ArchiveRefused
from skillyard.stores.skills.archives.collected import Collected, Enough
from skillyard.stores.skills.archives.limits import ArchiveLimits
from skillyard.stores.skills.tree import Caps, Tree, read_tree
from skillyard.stores.skills.validation.bundle import Bundle, Place, check_bundle

Profile = Literal["strict", "lenient"]


def validate(path: Path | str, profile: Profile = "strict", *, caps: Caps | None = None) -> list[Finding]:
    """Returns every finding about the skill in ``path`` (a directory, or its SKILL.md or skill.toml).

    ``strict`` is the specification, ``lenient`` what the catalogue still serves. No finding is an error when the
    skill is valid. Nothing of the skill is run. Raises InvalidInput for an unknown profile.
    """
    lenient = is_lenient(profile)
    directory = Path(os.path.abspath(path))  # noqa: PTH100 - the directory's own name counts, not a link's target
    if directory.is_file() and directory.name in ("SKILL.md", "skill.toml"):
        directory = directory.parent
    if not directory.is_dir():
        return [Finding("error", str(path), 0, "no-directory", "is not a directory that holds a skill")]
    caps = caps or Caps()
    tree, findings = read_tree(directory, caps)
    if tree is None:
        return findings
    return [*check_bundle(Bundle(tree, Place.of(directory), directory, lenient))[1], *_check_names(tree, caps)]


def is_lenient(profile: str) -> bool:
    """Returns whether the profile is the lenient one. Raises InvalidInput for an unknown profile."""
    if profile not in ("strict", "lenient"):
        raise InvalidInput("profile", "must be 'strict' or 'lenient'", shown(profile))
    return profile == "lenient"


def _check_names(tree: Tree, caps: Caps) -> list[Finding]:
    """Returns a warning for each name, at most twenty, that an archive could not have: the skill is served from its
    directory, and it cannot be published."""
    collected = Collected(ArchiveLimits(caps))
    with suppress(ArchiveRefused, Enough):
        for path in sorted(tree.files):
            collected.claim(path.encode(), directory=False, size=0)
    return [Finding("warning", found.file, 0, "portable-name", found.message) for found in collected.findings]
