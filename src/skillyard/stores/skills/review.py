"""A review of a bundle that lies in a directory, valid or not."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skillyard.domain.review import File, Review, review
from skillyard.domain.skill import Finding
from skillyard.stores.skills.bundle import Bundle, Place, check_bundle
from skillyard.stores.skills.tree import Caps, read_tree


def review_directory(path: Path | str, *, caps: Caps | None = None) -> dict[str, Any]:
    """The answer of ``catalogue.review`` for the bundle in ``path``; ``validation`` holds why it is no skill, when it
    is none. Nothing of it is run."""
    directory = Path(os.path.abspath(path))  # noqa: PTH100 - the directory's own name counts, not a link's target
    if not directory.is_dir():
        return _answer(Review(), [Finding("error", str(path), 0, "no-directory", "is no directory that holds a skill")])
    tree, findings = read_tree(directory, caps or Caps())
    if tree is None:
        return _answer(Review(), findings)
    skill, told = check_bundle(Bundle(tree, Place.of(directory), directory, lenient=True))
    made = review([File(path, file.data, file.executable) for path, file in tree.files.items()], skill)
    about = {"name": skill.name, "version": skill.version} if skill else {"name": directory.name, "version": None}
    return {**about, "digest": tree.digest, **_answer(made, list(told))}


def _answer(made: Review, validation: list[Finding]) -> dict[str, Any]:
    return {**made.as_dict(), "validation": [asdict(finding) for finding in validation]}
