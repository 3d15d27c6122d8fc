"""A review of a bundle that lies in a directory or an archive, valid or not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skillyard.domain.review.bundle import Review, python_sources, review
from skillyard.domain.review.file import File
from skillyard.domain.skill.skill import Finding
from skillyard.ports.jailed import PythonReader
from skillyard.stores.skills.tree import Caps, Tree, read_tree
from skillyard.stores.skills.validation.bundle import Bundle, Place, check_bundle


async def review_source(path: Path | str, reader: PythonReader) -> dict[str, Any]:
    """Returns the answer of ``catalogue.review`` for a bundle in a directory, a zip or a tar.

    ``validation`` says why it is not a skill, when it is not. Nothing of it is run. Raises OSError for an archive that
    cannot be read."""
    directory = Path(os.path.abspath(path))  # noqa: PTH100 - the directory's own name counts, not a link's target
    place, tree, told = _read(directory)
    if tree is None:
        return {"name": None, "version": None, "digest": None, **_answer(Review(), told)}
    skill, findings = check_bundle(Bundle(tree, place, directory, lenient=True))
    files = [File(name, file.data, file.executable) for name, file in tree.files.items()]
    facts = {name: await reader.read_python(source) for name, source in python_sources(files).items()}
    made = review(files, skill, facts)
    about = {"name": skill.name, "version": skill.version} if skill else {"name": place.name, "version": None}
    return {**about, "digest": tree.digest, **_answer(made, [*told, *findings])}


def _read(path: Path) -> tuple[Place, Tree | None, Sequence[Finding]]:
    if path.is_dir():
        return Place.of(path), *read_tree(path, Caps())
    if not path.is_file():
        missing = Finding("error", str(path), 0, "no-directory", "is neither a directory nor an archive with a skill")
        return Place.of(path), None, [missing]
    from skillyard.stores.skills.sources import read_source

    unpacked, findings = read_source(path)
    if unpacked is None:
        return Place(path.name), None, findings
    return Place(unpacked.stripped or path.name.partition(".")[0]), unpacked.tree, findings


def _answer(made: Review, validation: Sequence[Finding]) -> dict[str, Any]:
    return {**made.as_dict(), "validation": [asdict(finding) for finding in validation]}
