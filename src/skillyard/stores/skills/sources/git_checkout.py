"""The tracked files of a git checkout, as they lie in its work tree.

Every name is opened relative to its open parent without following links. A tracked link is read as the tracked file or
directory that it leads to; what is not tracked, or not below the skill, is never read.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from skillyard.domain.archive.names import ArchiveRefused, printable
from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.archives.collected import ArchiveLimits, Collected, Enough, Unpacked
from skillyard.stores.skills.sources.git_index import Tracked, read_index

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_HOPS = 8
_NAMED = 8


def read_checkout(
    root: Path, subdirectory: str = "", limits: ArchiveLimits | None = None
) -> tuple[Unpacked | None, list[Finding]]:
    """Returns the bundle of the files tracked below ``subdirectory``, and the findings.

    The bundle is None when a finding is an error. Nothing of the repository is executed. Raises OSError when its
    directory or index cannot be read.
    """
    collected = Collected(limits or ArchiveLimits())
    try:
        tracked = _below(root, subdirectory, collected.limits)
        if not tracked:
            raise ArchiveRefused("git-empty", subdirectory, "holds no file that git tracks")
        notes = list(_notes(tracked))
        with _walked(os.open(root, _DIRECTORY), _parts(subdirectory) if subdirectory else []) as home:
            missing = _collect(home, tracked, collected)
        unpacked, findings = collected.unpacked()
        return unpacked, [*findings, *notes, *_missing_note(missing)] if unpacked else findings
    except ArchiveRefused as refused:
        return None, [*collected.findings, refused.finding()]
    except Enough:
        return None, collected.findings


def tracked_marks(root: Path, marks: tuple[str, ...]) -> list[str]:
    """The directories in which one of ``marks`` is tracked: where skills are. Raises ArchiveRefused, OSError."""
    found = {os.fsdecode(posixpath.dirname(entry.path)) for entry in read_index(root) if _is_mark(entry, marks)}
    return sorted(found)


def _is_mark(entry: Tracked, marks: tuple[str, ...]) -> bool:
    return os.fsdecode(posixpath.basename(entry.path)) in marks


def _below(root: Path, subdirectory: str, limits: ArchiveLimits) -> dict[str, Tracked]:
    """By their paths below it."""
    prefix = os.fsencode(f"{subdirectory}/") if subdirectory else b""
    found: dict[str, Tracked] = {}
    for entry in read_index(root):
        if entry.path.startswith(prefix):
            found[os.fsdecode(entry.path[len(prefix) :])] = entry  # a conflict has several entries of one path
            limits.check_entries(len(found))
    return found


def _collect(home: int, tracked: Mapping[str, Tracked], collected: Collected) -> list[str]:
    """The paths that are tracked and not there."""
    missing: list[str] = []
    links = sum(stat.S_ISLNK(entry.mode) for entry in tracked.values())
    if links > collected.limits.caps.files:
        raise ArchiveRefused("archive-files", "", f"holds more than {collected.limits.caps.files} links")
    for path in sorted(tracked):
        entry = tracked[path]
        if stat.S_ISREG(entry.mode):
            targets = {path: path}
        elif stat.S_ISLNK(entry.mode):
            targets = _led_to(home, path, tracked)
        else:
            continue
        for name, target in targets.items():
            if not _add(home, name, target, collected) and not entry.sparse:
                missing.append(name)
    return missing


def _add(home: int, name: str, target: str, collected: Collected) -> bool:
    """Returns whether the file is there."""
    raw = os.fsencode(name)
    try:
        with _opened(home, target) as handle:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                collected.report(ArchiveRefused("archive-special", raw, "is not a file in the work tree"))
                return True
            wanted = collected.claim(raw, directory=False, size=found.st_size)
            if wanted is not None:
                with os.fdopen(os.dup(handle), "rb") as file:
                    data = file.read(found.st_size)
                collected.add(wanted, data, executable=bool(found.st_mode & stat.S_IXUSR))
    except FileNotFoundError:
        return False
    except OSError as error:  # a link in the place of a file or directory ends here, too
        collected.report(ArchiveRefused("unreadable", raw, f"cannot be read: {error.strerror}"))
    return True


def _led_to(home: int, path: str, tracked: Mapping[str, Tracked]) -> dict[str, str]:
    """Returns the files of a link: the file, or those of the directory, that it leads to.

    Raises ArchiveRefused."""
    target = path
    for _ in range(_HOPS):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(target), _link_text(home, target)))
        entry = tracked.get(target)
        if entry is None:
            below = {f"{path}/{inner[len(target) + 1 :]}": inner for inner in tracked if inner.startswith(f"{target}/")}
            plain = {name: inner for name, inner in below.items() if stat.S_ISREG(tracked[inner].mode)}
            if not plain or path.startswith(f"{target}/"):
                break
            return plain
        if stat.S_ISREG(entry.mode):
            return {path: target}
        if not stat.S_ISLNK(entry.mode):
            break
    raise ArchiveRefused("git-link", path, "is a link that leads to nothing that git tracks in the skill")


def _link_text(home: int, path: str) -> str:
    directory, _, name = path.rpartition("/")
    try:
        with _walked(os.dup(home), _parts(directory) if directory else []) as parent:
            return os.readlink(name, dir_fd=parent)
    except OSError:
        raise ArchiveRefused("git-link", path, "is tracked as a link, and is none in the work tree") from None


@contextmanager
def _opened(home: int, path: str) -> Iterator[int]:
    *directories, name = _parts(path)
    with _walked(os.dup(home), directories) as parent:
        handle = os.open(name, _FILE, dir_fd=parent)
    try:
        yield handle
    finally:
        os.close(handle)


def _parts(path: str) -> list[str]:
    parts = path.split("/")
    if not {"", ".", ".."}.isdisjoint(parts):
        raise ArchiveRefused("archive-traversal", path, "goes up, or nowhere")
    return parts


@contextmanager
def _walked(handle: int, parts: list[str]) -> Iterator[int]:
    """The directory below ``handle``, which is closed with it."""
    try:
        for part in parts:
            inner = os.open(part, _DIRECTORY, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def _notes(tracked: Mapping[str, Tracked]) -> Iterator[Finding]:
    modules = [path for path, entry in tracked.items() if stat.S_IFMT(entry.mode) == 0o160000]
    if modules:
        message = f"submodules are not part of the skill: {_some(modules)}"
        yield Finding("note", ".", 0, "git-submodule", message)


def _missing_note(missing: list[str]) -> Iterator[Finding]:
    if missing:
        message = f"git tracks files that are not in the work tree: {_some(missing)}"
        yield Finding("note", ".", 0, "git-missing", message)


def _some(paths: list[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(printable(path) for path in paths[:_NAMED]) + more
