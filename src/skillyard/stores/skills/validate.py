"""Validation of one bundle on disk, as the command line and uploads want it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.archives.portable import check_names
from skillyard.stores.skills.bundle import Bundle, Place, check_bundle
from skillyard.stores.skills.tree import Caps, read_tree

Profile = Literal["strict", "lenient"]


def validate(path: Path | str, profile: Profile = "strict", *, caps: Caps | None = None) -> list[Finding]:
    """Everything there is to say about the skill in ``path`` (a directory, or its SKILL.md or skill.toml).

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
    return [*check_bundle(Bundle(tree, Place.of(directory), directory, lenient))[1], *check_names(tree, caps)]


def is_lenient(profile: str) -> bool:
    """Raises InvalidInput."""
    if profile not in ("strict", "lenient"):
        raise InvalidInput("profile", "must be 'strict' or 'lenient'", shown(profile))
    return profile == "lenient"
