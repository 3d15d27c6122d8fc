"""The directories below every root, as they were last seen: looked at again by one ``stat`` each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.catalogue.directories import (
    Folder,
    ScanLimits,
    below,
    folder_signature,
    look,
    missing,
    place_of,
    starts_of,
    too_many,
)


@dataclass(frozen=True, slots=True)
class Tree:
    """The directories below one root. Its search begins at ``starts``; ``tops`` are those that are bundles."""

    root: str
    starts: tuple[str, ...] = ()
    tops: tuple[str, ...] = ()
    folders: Mapping[str, Folder] = field(default_factory=dict)
    notes: tuple[Finding, ...] = ()

    def bundles(self) -> Iterator[str]:
        """In no order."""
        yield from self.tops
        for path, folder in self.folders.items():
            for name in folder.served:
                yield below(path, name)

    @property
    def count(self) -> int:
        """The number of bundles."""
        return len(self.tops) + sum(len(folder.served) for folder in self.folders.values())

    def place(self, path: str) -> bytes:
        """Sorts bundles in the order in which a search finds them."""
        for number, start in enumerate(self.starts):
            if path == start or path.startswith(below(start, "")):
                return place_of(number, start, path)
        raise ValueError(f"{path} is not below {self.root}")

    def leads_to(self, path: str) -> list[str]:
        """The folders on the way from the start down to ``path``."""
        found = []
        while path not in self.starts and path != "/":
            path = os.path.dirname(path)  # noqa: PTH120 - text in, text out
            found.append(path)
        return [folder for folder in found if folder in self.folders]

    def without(self, path: str) -> Tree:
        """To be looked at again at ``path``, which was a bundle and is none any more."""
        parent, name = os.path.split(path)
        folder = self.folders.get(parent)
        if folder is None:
            return self
        bundles, served = (tuple(n for n in names if n != name) for names in (folder.bundles, folder.served))
        unknown = replace(folder, stamp=b"", bundles=bundles, served=served)
        return replace(self, folders={**self.folders, parent: unknown})


class _Careful(Exception):
    """The order in which directories are visited decides what is found."""


def walk(roots: Sequence[str], limits: ScanLimits, before: Sequence[Tree]) -> list[Tree]:
    """Every root as it is. Folders whose stamps are those of ``before`` are not listed again."""
    nested = any(inner != outer and inner.startswith(below(outer, "")) for inner in roots for outer in roots)
    known = {tree.root: tree for tree in before}
    taken: set[str] | None = set() if nested else None
    return [_Search(root, limits, known.get(root) or Tree(root), taken).tree() for root in roots]


class _Search:
    """One root, searched once. ``taken``: paths that another root may lead to as well, None when there are none."""

    def __init__(self, root: str, limits: ScanLimits, before: Tree, taken: set[str] | None) -> None:
        self._root = root
        self._limits = limits
        self._before = before.folders
        self._taken = taken
        self._starts, note = starts_of(root)
        self._notes = [note] if note else []
        self._folders: dict[str, Folder] = {}
        self._tops: list[str] = []
        self._visited: set[tuple[int, int]] = set()

    def tree(self) -> Tree:
        if not Path(self._root).is_dir():
            return Tree(self._root, notes=(missing(self._root),))
        try:
            self._plainly()
        except _Careful:
            self._carefully()
        notes = [folder.note for _, folder in sorted(self._folders.items()) if folder.note]
        return Tree(self._root, tuple(self._starts), tuple(self._tops), self._folders, (*notes, *self._notes))

    def _plainly(self) -> None:
        """Without links and within the limits the order does not matter, and bundles need no look."""
        if self._taken is not None or len(self._starts) > 1:
            raise _Careful
        stack, count = [(self._starts[0], 0)], 0
        while stack:
            path, depth = stack.pop()
            folder = self._folder(path, depth)
            count += 1 if folder is None else 1 + len(folder.bundles)
            if count > self._limits.directories or (folder and folder.links):
                raise _Careful
            if folder is None:
                self._promote(path)
                continue
            self._folders[path] = _serving(folder, folder.bundles)
            stack += [(below(path, name), depth + 1) for name in folder.folders]

    def _promote(self, path: str) -> None:
        """``path`` was listed as a folder, and is a bundle."""
        if path in self._starts:
            self._tops.append(path)
            return
        parent, name = os.path.split(path)
        self._folders[parent] = _with_bundles(self._folders[parent], {name})

    def _carefully(self) -> None:
        """Each real directory is visited once, whatever leads to it, in order."""
        self._folders, self._tops = {}, []
        for start in self._starts:
            if self._visit(start, 0):
                self._tops.append(start)

    def _visit(self, path: str, depth: int, *, is_bundle: bool = False) -> bool:
        """Returns whether ``path`` is a bundle that nothing led to before."""
        if not self._is_new(path):
            return False
        folder = None if is_bundle else self._folder(path, depth)
        if folder is None:
            if self._taken is not None:
                self._taken.add(path)
            return True
        bundles = frozenset(folder.bundles)
        children = sorted((*folder.folders, *folder.bundles))
        served = {name for name in children if self._visit(below(path, name), depth + 1, is_bundle=name in bundles)}
        whole = _with_bundles(folder, served - bundles)
        self._folders[path] = _serving(whole, tuple(name for name in whole.bundles if name in served))
        return False

    def _is_new(self, path: str) -> bool:
        try:
            found = os.stat(path)  # noqa: PTH116 - as text
        except OSError:
            return False
        if len(self._visited) >= self._limits.directories:
            if not any(note.rule == "scan-directories" for note in self._notes):
                self._notes.append(too_many(path, self._limits.directories))
            return False
        identity = (found.st_dev, found.st_ino)
        fresh = identity not in self._visited and path not in (self._taken or ())
        self._visited.add(identity)
        return fresh

    def _folder(self, path: str, depth: int) -> Folder | None:
        """None for a bundle."""
        before = self._before.get(path)
        if before and before.stamp and before.stamp == folder_signature(path, before.links):
            return before
        return look(path, before=before.bundles if before else (), deepest=depth == self._limits.depth)


def _serving(folder: Folder, served: tuple[str, ...]) -> Folder:
    return folder if folder.served == served else replace(folder, served=served)


def _with_bundles(folder: Folder, names: set[str]) -> Folder:
    """``folder`` with ``names``, which it has as folders, as bundles."""
    if not names:
        return folder
    bundles = tuple(sorted({*folder.bundles, *names}))
    return replace(folder, folders=tuple(n for n in folder.folders if n not in names), bundles=bundles, served=bundles)


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
