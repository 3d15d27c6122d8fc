"""Reads bundles: from their files to an entry of the index and to a skill. All of it blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from skillyard.domain.errors import StoreFault
from skillyard.domain.skill.publication import Publication
from skillyard.domain.skill.skill import Finding, Skill, SkillSource
from skillyard.stores.skills.catalogue.rows import GUIDE_RANK, PUBLISHED, Entry, Place, findings_text, key_of, line_text
from skillyard.stores.skills.catalogue.search import is_bundle
from skillyard.stores.skills.catalogue.stamps import watch
from skillyard.stores.skills.snapshots import Snapshots
from skillyard.stores.skills.tree import Caps, Tree, read_tree, shown
from skillyard.stores.skills.validation import bundle
from skillyard.values import dataclass

MAX_ERRORS = 20
"""Findings that are kept of one bundle."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A bundle as it was read once: these very bytes are checked, indexed and stored."""

    entry: Entry
    tree: Tree | None
    skill: Skill | None


@dataclass(frozen=True, slots=True)
class Loader:
    snapshots: Snapshots
    lenient: bool
    caps: Caps

    def read(self, at: Place) -> Reading | None:
        """Reads the bundle in a directory; returns None when there is none any more."""
        watched = watch(at.path, self.caps)
        if not is_bundle(at.path):
            return None
        source = SkillSource.BUILT_IN if at.rank == GUIDE_RANK else SkillSource.DIRECTORY
        path = Path(at.path)
        tree, skill, errors = self._checked(path, bundle.Place.of(path), source, lenient=self.lenient)
        entry = Entry(at.key, at.rank, at.place, watched.stamp, watched.paths, watched.count)
        return Reading(_filled(entry, skill, errors), tree, skill)

    def read_published(self, publication: Publication) -> Reading:
        """Reads the bundle of a published version from its snapshot, which is the only copy. The lenient rules judge a
        bundle that was let in, whatever the settings say since."""
        name, version = publication.name, publication.version
        home = self.snapshots.path(publication.digest)
        place = bundle.Place(name, version)
        tree, skill, errors = self._checked(home, place, SkillSource.PUBLISHED, lenient=True)
        wrong = _difference(publication, tree, skill)
        if wrong:
            skill, errors = None, [replace(wrong, file=shown(str(home))), *errors]
        key = key_of(name, version)
        return Reading(_filled(Entry(key, PUBLISHED, key), skill, errors), tree, skill)

    def keep(self, reading: Reading) -> Skill | None:
        """Returns the skill of a reading, with its snapshot in place. Raises StoreFault."""
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
        self, path: Path, place: bundle.Place, source: SkillSource, *, lenient: bool
    ) -> tuple[Tree | None, Skill | None, list[Finding]]:
        """Returns the errors with the bundle's path in front of the file's."""
        tree, findings = read_tree(path, self.caps)
        if tree is None:
            return None, None, _placed(path, findings)
        read = bundle.Bundle(tree, place, self.snapshots.path(tree.digest), lenient)
        skill, found = bundle.check_bundle(read)
        return tree, replace(skill, source=source) if skill else None, _placed(path, found)


def _placed(path: Path, findings: Iterable[Finding]) -> list[Finding]:
    return [replace(f, file=shown(str(path / f.file))) for f in findings if f.level == "error"]


def _difference(publication: Publication, tree: Tree | None, skill: Skill | None) -> Finding | None:
    """Returns why the snapshot of a publication is not served, None when it is."""
    what = f"{publication.name} {publication.version}"
    if tree is None or tree.digest != publication.digest:
        return Finding("error", "", 0, "snapshot", f"the bundle of {what} is missing or damaged")
    if skill is None:
        return Finding("error", "", 0, "published", f"{what} cannot be served: it breaks a rule")
    if (skill.name, skill.version) != (publication.name, publication.version):
        message = f"{what} cannot be served: it calls itself {skill.name} {skill.version}"
        return Finding("error", "", 0, "published", message)
    return None


def _filled(entry: Entry, skill: Skill | None, errors: list[Finding]) -> Entry:
    entry = replace(entry, errors=findings_text(errors[:MAX_ERRORS]))
    if skill is None:
        return entry
    named = replace(entry, name=skill.name, version=skill.version)
    return replace(named, digest=skill.digest, line=line_text(skill.line))
