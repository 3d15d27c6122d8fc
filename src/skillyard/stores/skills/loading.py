"""Reading every bundle below the roots, and again only those that changed. All of it blocks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from skillyard.domain.skill import Finding, Skill
from skillyard.stores.skills.bundle import Bundle, Place, check_bundle
from skillyard.stores.skills.layout import Scan, ScanLimits, scan
from skillyard.stores.skills.shelf import Loaded, Shelf, arrange
from skillyard.stores.skills.snapshots import Snapshots
from skillyard.stores.skills.stamps import Watched, bundle_stamps, changed, is_settled
from skillyard.stores.skills.tree import Caps, Tree, read_tree


@dataclass(frozen=True, slots=True)
class State:
    """What was loaded, and what to look at to learn whether it still holds."""

    shelf: Shelf
    bundles: Mapping[Path, Loaded]
    watched: Watched
    settled: bool

    def is_stale(self) -> bool:
        return not self.settled or changed(self.watched)

    def digests(self) -> set[str]:
        return {skill.digest for versions in self.shelf.skills.values() for skill in versions.values()}


@dataclass(frozen=True, slots=True)
class Loader:
    """Makes states. ``roots`` in the order of precedence; ``guide`` comes before them all."""

    roots: Sequence[Path]
    guide: Path | None
    snapshots: Snapshots
    lenient: bool
    caps: Caps = field(default_factory=Caps)
    limits: ScanLimits = field(default_factory=ScanLimits)

    def load(self, before: State | None = None) -> State:
        """Bundles whose stamps are those of ``before`` are taken from there."""
        scans = [scan(root, self.limits) for root in self.roots]
        known = before.bundles if before else {}
        bundles = {path: self._bundle(path, known.get(path)) for path in self._paths(scans)}
        loaded = list(bundles.values())
        watched: Watched = {}
        for part in (*(s.watched for s in scans), *(bundle.watched for bundle in loaded)):
            watched.update(part)
        notes = [finding for found in scans for finding in found.findings]
        shelf = arrange(loaded, self.guide, notes)
        return State(shelf, bundles, watched, all(bundle.settled for bundle in loaded))

    def _paths(self, scans: Sequence[Scan]) -> list[Path]:
        guide = [self.guide] if self.guide else []
        return list(dict.fromkeys([*guide, *(path for found in scans for path in found.bundles)]))

    def _bundle(self, path: Path, before: Loaded | None) -> Loaded:
        now = time.time_ns()
        watched = bundle_stamps(path, self.caps)
        if before and before.settled and before.watched == watched:
            return before
        skill, findings = self._read(path)
        return Loaded(path, skill, tuple(findings), watched, is_settled(watched, now))

    def _read(self, path: Path) -> tuple[Skill | None, Sequence[Finding]]:
        tree, findings = read_tree(path, self.caps)
        if tree is None:
            return None, findings
        root = self.snapshots.path(tree.digest)
        skill, findings = check_bundle(Bundle(tree, Place.of(path), root, self.lenient))
        refusal = self._stored(tree) if skill else None
        return (None, [*findings, refusal]) if refusal else (skill, findings)

    def _stored(self, tree: Tree) -> Finding | None:
        try:
            self.snapshots.store(tree)
        except OSError as error:
            return Finding("error", ".", 0, "snapshot", f"its snapshot cannot be stored: {error.strerror}")
        return None
