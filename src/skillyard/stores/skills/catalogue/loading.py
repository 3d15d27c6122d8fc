"""Reading bundles: from their files to an entry of the index and to a skill. All of it blocks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from skillyard.domain.errors import StoreFault
from skillyard.domain.skill.publication import Publication
from skillyard.domain.skill.skill import Finding, Skill, SkillSource
from skillyard.stores.skills.catalogue.directories import is_bundle
from skillyard.stores.skills.catalogue.rows import GUIDE_RANK, PUBLISHED, Entry, findings_text, key_of, line_text
from skillyard.stores.skills.catalogue.stamps import bundle_stamps, is_settled, signature, stamp
from skillyard.stores.skills.snapshots import Snapshots
from skillyard.stores.skills.tree import Caps, Tree, read_tree, shown
from skillyard.stores.skills.validation.bundle import Bundle, Place, check_bundle


@dataclass(frozen=True, slots=True)
class Watch:
    """``paths`` as JSON: those whose links are not followed and those whose links are, relative to the bundle.
    ``stamp`` is their signature, empty when an equal one would not mean equal bytes."""

    paths: str
    count: int
    stamp: bytes


def watch(directory: str, caps: Caps) -> Watch:
    """To be taken before the files are read."""
    now = time.time_ns()
    stamps = bundle_stamps(Path(directory), caps)
    behind = len(directory)
    plain = [(path[behind:], seen) for (path, follow), seen in stamps.items() if not follow]
    followed = [(path[behind:], seen) for (path, follow), seen in stamps.items() if follow]
    seen = [stamp for _, stamp in (*plain, *followed)]
    paths = json.dumps([[path for path, _ in plain], [path for path, _ in followed]])
    return Watch(paths, len(seen), signature(seen) if is_settled(seen, now) else b"")


def is_unchanged(entry: Entry) -> bool:
    """Returns whether a bundle is what it was when ``entry`` was made, by stamps alone."""
    if not entry.stamp:
        return False
    directory = entry.location
    plain, followed = json.loads(entry.watched)
    stamps = [stamp(directory + path, False) for path in plain]
    stamps += [stamp(directory + path, True) for path in followed]
    return signature(stamps) == entry.stamp


MAX_ERRORS = 20
"""Findings that are kept of one bundle."""
_UNWATCHED = Watch("[[],[]]", 0, b"")


@dataclass(frozen=True, slots=True)
class Reading:
    """A bundle as it was read once: what is checked, indexed and stored are these very bytes."""

    entry: Entry
    tree: Tree | None
    skill: Skill | None


@dataclass(frozen=True, slots=True)
class Loader:
    snapshots: Snapshots
    lenient: bool
    caps: Caps

    def read(self, path: str, rank: int, place: bytes) -> Reading | None:
        """The bundle in a directory, None when it is none any more."""
        watched = watch(path, self.caps)
        if not is_bundle(path):
            return None
        source = SkillSource.BUILT_IN if rank == GUIDE_RANK else SkillSource.DIRECTORY
        tree, skill, errors = self._checked(Path(path), Place.of(Path(path)), source, lenient=self.lenient)
        return Reading(_entry(os.fsencode(path), rank, place, watched, skill, errors), tree, skill)

    def read_published(self, publication: Publication) -> Reading:
        """The bundle of a published version, from its snapshot, which is the only copy. What was let in is judged by
        the lenient rules, whatever the settings say since."""
        name, version = publication.name, publication.version
        home = self.snapshots.path(publication.digest)
        tree, skill, errors = self._checked(home, Place(name, version), SkillSource.PUBLISHED, lenient=True)
        wrong = _difference(publication, tree, skill)
        if wrong:
            skill, errors = None, [replace(wrong, file=shown(str(home))), *errors]
        entry = _entry(key_of(name, version), PUBLISHED, key_of(name, version), _UNWATCHED, skill, errors)
        return Reading(entry, tree, skill)

    def keep(self, reading: Reading) -> Skill | None:
        """The skill of a reading, with its snapshot in place. Raises StoreFault."""
        if reading.skill is None or reading.tree is None:
            return None
        if reading.skill.source is not SkillSource.PUBLISHED:  # that was read from its snapshot
            try:
                self.snapshots.store(reading.tree)
            except OSError as error:
                what = f"{reading.skill.name} {reading.skill.version}"
                raise StoreFault(f"the snapshot of the skill {what} cannot be stored: {error.strerror}") from error
        return reading.skill

    def _checked(
        self, path: Path, place: Place, source: SkillSource, *, lenient: bool
    ) -> tuple[Tree | None, Skill | None, list[Finding]]:
        """The errors with the bundle's path in front of the file's."""
        tree, findings = read_tree(path, self.caps)
        if tree is None:
            return None, None, _placed(path, findings)
        skill, found = check_bundle(Bundle(tree, place, self.snapshots.path(tree.digest), lenient))
        return tree, replace(skill, source=source) if skill else None, _placed(path, found)


def _placed(path: Path, findings: Iterable[Finding]) -> list[Finding]:
    return [replace(f, file=shown(str(path / f.file))) for f in findings if f.level == "error"]


def _difference(publication: Publication, tree: Tree | None, skill: Skill | None) -> Finding | None:
    """Returns why the snapshot of a publication is not served, None when it is."""
    what = f"{publication.name} {publication.version}"
    if tree is None or tree.digest != publication.digest:
        message = f"the bundle of {what} is missing or damaged"
        return Finding("error", "", 0, "snapshot", message)
    if skill is None:
        return Finding("error", "", 0, "published", f"{what} cannot be served: it breaks a rule")
    if (skill.name, skill.version) != (publication.name, publication.version):
        message = f"{what} cannot be served: it calls itself {skill.name} {skill.version}"
        return Finding("error", "", 0, "published", message)
    return None


def _entry(
    path: bytes, rank: int, place: bytes, watched: Watch, skill: Skill | None, errors: Iterable[Finding]
) -> Entry:
    return Entry(
        path=path,
        rank=rank,
        place=place,
        stamp=watched.stamp,
        watched=watched.paths,
        paths=watched.count,
        name=skill.name if skill else None,
        version=skill.version if skill else None,
        digest=skill.digest if skill else None,
        line=line_text(skill.line) if skill else "",
        errors=findings_text(list(errors)[:MAX_ERRORS]),
    )
