"""What differs between two looks at the directories below the roots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.catalogue.forest import Tree
from skillyard.stores.skills.layout import Folder, below

MAX_NOTES = 100


@dataclass(slots=True)
class Change:
    """``number`` is a root's position. ``notes`` are None when they are what they were."""

    added: list[tuple[int, str]] = field(default_factory=list)
    removed: list[tuple[int, str]] = field(default_factory=list)
    folders: list[tuple[int, str, Folder]] = field(default_factory=list)
    gone: list[tuple[int, str]] = field(default_factory=list)
    notes: list[Finding] | None = None

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.folders or self.gone or self.notes is not None)


def difference(before: Sequence[Tree], after: Sequence[Tree]) -> Change:
    """Of the same roots."""
    change = Change()
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        _compare(number, old, new, change)
    notes = notes_of(after)
    if notes != notes_of(before):
        change.notes = notes
    return change


def notes_of(trees: Iterable[Tree]) -> list[Finding]:
    return [note for tree in trees for note in tree.notes][:MAX_NOTES]


def _compare(number: int, old: Tree, new: Tree, change: Change) -> None:
    before, after = set(old.tops), set(new.tops)
    for path, folder in new.folders.items():
        known = old.folders.get(path)
        if known is folder:
            continue
        if known != folder:
            change.folders.append((number, path, folder))
        after |= {below(path, name) for name in folder.served}
        before |= {below(path, name) for name in known.served} if known else set()
    for path in old.folders.keys() - new.folders.keys():
        change.gone.append((number, path))
        before |= {below(path, name) for name in old.folders[path].served}
    change.added += [(number, path) for path in sorted(after - before)]
    change.removed += [(number, path) for path in sorted(before - after)]
