"""The search for bundles below the roots.

A root holds ``<dotted.name>/``, ``<name>/<version>/``, Agent Skills directories and folders of any of these, or it is a
bundle itself. A search does not look into bundles.

A root with one of :data:`HOMES` is a project or somebody's home: a search looks there and in ``skills``, and nowhere
else in it. It skips names that begin with a dot, but for :data:`SHELVES`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from skillyard.domain.skill.name import is_excluded
from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.catalogue.stamps import is_settled, signature, stamp
from skillyard.stores.skills.tree import shown
from skillyard.values import dataclass

MARKS = ("skill.toml", "SKILL.md")
HOMES = (".agents/skills", ".claude/skills")
"""Where clients keep Agent Skills, in the order of precedence (agentskills.io, client implementation)."""
SHELVES = frozenset({".curated", ".experimental", ".system"})
"""Folders of skills in repositories."""
MAX_NOTES = 100


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """The reach of a search: ``depth`` directories below the root, ``directories`` altogether."""

    depth: int = 6
    directories: int = 200_000


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory that is not a bundle. ``stamp`` is its signature, empty when an equal one would prove nothing.
    ``folders`` and ``bundles`` are names in it, ``served`` those bundles to which no earlier path leads, ``links`` the
    symbolic links, whose targets may change without it."""

    stamp: bytes
    folders: tuple[str, ...] = ()
    bundles: tuple[str, ...] = ()
    served: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    note: Finding | None = None

    def is_at(self, path: str) -> bool:
        """Returns whether the directory at ``path`` is still what it was."""
        return bool(self.stamp) and self.stamp == _signature(path, self.links)


@dataclass(frozen=True, slots=True)
class Tree:
    """The directories below one root. Its search begins at ``starts``; ``tops`` are those that are bundles."""

    root: str
    starts: tuple[str, ...] = ()
    tops: tuple[str, ...] = ()
    folders: dict[str, Folder] = field(default_factory=dict)
    notes: tuple[Finding, ...] = ()

    def bundles(self) -> Iterator[tuple[str, bytes]]:
        """Yields the path and the place of each bundle, in no order."""
        for path in self.tops:
            yield path, self.place(path)
        for path, folder in self.folders.items():
            if folder.served:
                place = self.place(path)
                inner = place if len(place) == 1 else place + b"\0"
                for name in folder.served:
                    yield below(path, name), inner + name.encode("utf-8", "surrogatepass")

    @property
    def count(self) -> int:
        """The number of bundles."""
        return len(self.tops) + sum(len(folder.served) for folder in self.folders.values())

    def place(self, path: str) -> bytes:
        """Returns a key that sorts bundles as a search finds them: by start, then name by name."""
        for number, start in enumerate(self.starts):
            if path == start or path.startswith(below(start, "")):
                inner = path[len(start) :].strip("/").replace("/", "\0")
                return bytes([number]) + inner.encode("utf-8", "surrogatepass")
        raise ValueError(f"{path} is not below {self.root}")

    def above(self, path: str) -> list[tuple[str, Folder]]:
        """Returns the folders on the way from the start down to ``path``."""
        found = []
        while path not in self.starts and path != "/":
            path = os.path.dirname(path)  # noqa: PTH120 - text in, text out
            found.append(path)
        return [(path, folder) for path in found if (folder := self.folders.get(path))]

    def edges(self) -> list[tuple[str, Folder]]:
        """Returns the folders at which the search begins, and the place of a missing root."""
        if not self.starts:
            return [(self.root, Folder(signature([None])))]
        return [(start, folder) for start in self.starts if (folder := self.folders.get(start))]

    def doubt(self, path: str) -> None:
        """Has the next search list the folder of ``path`` again: the bundle there was none any more."""
        self.folders.pop(os.path.dirname(path), None)  # noqa: PTH120


def walk(roots: Sequence[str], limits: ScanLimits, before: Sequence[Tree]) -> list[Tree]:
    """Returns every root as it is, an empty path as an empty tree. A folder that ``before`` knows and whose stamp is
    the same is not listed again."""
    real = [root for root in roots if root]
    nested = any(inner != outer and inner.startswith(below(outer, "")) for inner in real for outer in real)
    known = {tree.root: tree.folders for tree in before}
    taken: set[str] | None = set() if nested else None
    return [_Search(root, limits, known.get(root, {}), taken).tree() if root else Tree(root) for root in roots]


def to_text(trees: Sequence[Tree], limits: ScanLimits) -> str:
    """Returns trees as text for :func:`from_text`."""
    return json.dumps([asdict(limits), [asdict(tree) for tree in trees]], separators=(",", ":"), default=bytes.hex)


def from_text(text: str, limits: ScanLimits) -> list[Tree] | None:
    """Returns the trees of a text, None when they were found within other limits."""
    of, trees = json.loads(text)
    return [_tree(values) for values in trees] if of == asdict(limits) else None


def _tree(values: dict[str, Any]) -> Tree:
    folders = {path: _folder(folder) for path, folder in values["folders"].items()}
    notes = tuple(Finding(**note) for note in values["notes"])
    return Tree(values["root"], tuple(values["starts"]), tuple(values["tops"]), folders, notes)


def _folder(values: dict[str, Any]) -> Folder:
    names = {part: tuple(map(sys.intern, values[part])) for part in ("folders", "bundles", "served", "links")}
    note = values["note"]
    return Folder(bytes.fromhex(values["stamp"]), **names, note=note and Finding(**note))


def notes_of(trees: Sequence[Tree]) -> list[Finding]:
    return [note for tree in trees for note in tree.notes][:MAX_NOTES]


class _OrderMatters(Exception):
    """Links, several starts or a limit: the first path to a directory decides what is found."""


class _Search:
    """One search of one root. ``taken``: paths that another root may lead to as well, None when there are none.

    Without links and within the limits no directory is found twice, and bundles are not looked at.
    """

    def __init__(self, root: str, limits: ScanLimits, before: dict[str, Folder], taken: set[str] | None) -> None:
        self._root = root
        self._limits = limits
        self._before = before
        self._taken = taken
        self._starts, note = _starts_of(root)
        self._notes = [note] if note else []
        self._folders: dict[str, Folder] = {}
        self._in_order = taken is not None or len(self._starts) > 1
        self._visited: set[tuple[int, int]] = set()
        self._count = 0

    def tree(self) -> Tree:
        if not Path(self._root).is_dir():
            return Tree(self._root, notes=(_note(self._root, "root-missing", "is not a directory"),))
        try:
            tops = [start for start in self._starts if self._visit(start, 0)]
        except _OrderMatters:
            self._in_order = True
            self._folders = {}
            tops = [start for start in self._starts if self._visit(start, 0)]
        notes = [folder.note for _, folder in sorted(self._folders.items()) if folder.note]
        return Tree(self._root, tuple(self._starts), tuple(tops), self._folders, (*notes, *self._notes))

    def _visit(self, path: str, depth: int, *, is_bundle: bool = False) -> bool:
        """Returns whether ``path`` is a bundle that nothing led to before."""
        if self._in_order and not self._is_new(path):
            return False
        folder = None if is_bundle else self._folder(path, depth)
        if folder is None:
            if self._taken is not None:
                self._taken.add(path)
            return True
        self._count += 1 + len(folder.bundles)
        if not self._in_order and (folder.links or self._count > self._limits.directories):
            raise _OrderMatters
        bundles = frozenset(folder.bundles)
        children = sorted((*folder.folders, *folder.bundles)) if self._in_order else folder.folders
        served = {name for name in children if self._visit(below(path, name), depth + 1, is_bundle=name in bundles)}
        self._folders[path] = _with_served(folder, served if self._in_order else served | bundles)
        return False

    def _is_new(self, path: str) -> bool:
        try:
            found = os.stat(path)  # noqa: PTH116 - as text
        except OSError:
            return False
        if len(self._visited) >= self._limits.directories:
            if not any(note.rule == "scan-directories" for note in self._notes):
                message = f"the search ends here, after {self._limits.directories} directories"
                self._notes.append(_note(path, "scan-directories", message))
            return False
        identity = (found.st_dev, found.st_ino)
        fresh = identity not in self._visited and path not in (self._taken or ())
        self._visited.add(identity)
        return fresh

    def _folder(self, path: str, depth: int) -> Folder | None:
        """Returns None for a bundle."""
        before = self._before.get(path)
        return before if before and before.is_at(path) else look(path, deepest=depth == self._limits.depth)


def look(directory: str, *, deepest: bool = False) -> Folder | None:
    """Returns the content of ``directory``, None when it is a bundle. Below the ``deepest`` nothing is searched."""
    now = time.time_ns()
    seen = stamp(directory, True)
    try:
        with os.scandir(directory) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        stamped = signature([seen]) if is_settled([seen], now) else b""
        return Folder(stamped, note=_note(directory, "unreadable", f"cannot be read: {error.strerror}"))
    if any(entry.name in MARKS for entry in found):
        return None
    links = tuple(entry.name for entry in found if entry.is_symlink())
    stamps = [seen, *(stamp(below(directory, link), True) for link in links)]
    stamped = signature(stamps) if is_settled(stamps, now) else b""
    children = [entry for entry in found if _is_searched(entry)]
    if deepest:
        note = "lies as deep as is searched: what is below it is not"
        return Folder(stamped, links=links, note=_note(directory, "scan-depth", note) if children else None)
    folders: list[str] = []
    bundles: list[str] = []
    for entry in children:
        (bundles if is_bundle(entry.path) else folders).append(sys.intern(entry.name))
    return Folder(stamped, tuple(folders), tuple(bundles), tuple(bundles), links)


def is_bundle(directory: str) -> bool:
    return any(os.path.lexists(below(directory, mark)) for mark in MARKS)


def below(directory: str, name: str) -> str:
    return f"{directory}{name}" if directory.endswith("/") else f"{directory}/{name}"


def _starts_of(root: str) -> tuple[Sequence[str], Finding | None]:
    """Returns the directories of skills in a project with a note, else the root itself."""
    homes = [start for home in HOMES if (start := Path(root, home)).is_dir()]
    if not homes or is_bundle(root):
        return [root], None
    searched = [str(start) for start in (*homes, Path(root, "skills")) if start.is_dir()]
    names = ", ".join(os.path.relpath(start, root) for start in searched)
    note = f"is a project: skills are looked for in {names} and nowhere else in it"
    return searched, Finding("note", shown(root), 0, "scan-project", note)


def _signature(directory: str, links: Sequence[str]) -> bytes:
    """Returns the stamp of a folder and of the targets of its links, which change without it."""
    return signature([stamp(directory, True), *(stamp(below(directory, link), True) for link in links)])


def _with_served(folder: Folder, served: set[str] | frozenset[str]) -> Folder:
    """Returns ``folder`` with these bundles, some of which it has as folders."""
    if served == frozenset(folder.served):
        return folder
    bundles = tuple(sorted({*folder.bundles, *served}))
    folders = tuple(name for name in folder.folders if name not in served)
    return replace(folder, folders=folders, bundles=bundles, served=tuple(sorted(served)))


def _is_searched(entry: os.DirEntry[str]) -> bool:
    hidden = entry.name.startswith(".") and entry.name not in SHELVES
    if hidden or is_excluded(entry.name):
        return False
    try:
        return entry.is_dir()
    except OSError:
        return False


def _note(directory: str, rule: str, message: str) -> Finding:
    return Finding("warning", shown(directory), 0, rule, message)
