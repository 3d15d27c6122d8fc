"""Clears a sandbox between two calls of a session of all but ``/workspace``.

Its programs have ended before, or stand still where they are kept. The first process of the sandbox saw to that, and
it is confirmed here.
"""

from __future__ import annotations

import os
import select
import stat
from contextlib import suppress

from .files.walk import open_directory, remove_below

WORKSPACE = "/workspace"
_SCRATCH = ("/tmp", "/dev/shm")  # noqa: S108 - inside a sandbox
_OPEN, _OWN = 0o1777, 0o700
_MOST_TOLD = 8
_ROUND_MS, _ROUNDS = 5, 200


def clear(workspace: str, spared: frozenset[int] = frozenset()) -> list[str]:
    """Removes all that is to go; returns what is left. The processes ``spared`` may stay."""
    left = _staying(spared)
    for place in _places(workspace):
        left += _emptied(place)
    mode = stat.S_IMODE(os.stat(workspace).st_mode)
    if mode & _OWN != _OWN:
        os.chmod(workspace, mode | _OWN)
    return left[:_MOST_TOLD]


def is_clear(workspace: str, spared: frozenset[int] = frozenset()) -> bool:
    """Returns whether :func:`clear` has nothing to do. It changes nothing, and takes no time that programs choose.

    Raises OSError.
    """
    found, calm = _others()
    return (
        calm
        and spared.issuperset(found)
        and os.stat(workspace).st_mode & _OWN == _OWN
        and all(map(_is_empty, _places(workspace)))
    )


def _places(workspace: str) -> list[str]:
    # Where the sandbox has no root of its own, all its places lie beside the workspace: never touch another's.
    root = "" if workspace == WORKSPACE else workspace.removesuffix(WORKSPACE)
    return [root + place for place in _SCRATCH] if root or workspace == WORKSPACE else []


def _is_empty(place: str) -> bool:
    """Returns whether a directory is empty, and as it was at first. Raises OSError."""
    try:
        top = open_directory(place)
    except FileNotFoundError:
        return True
    try:
        with os.scandir(top) as entries:
            return next(entries, None) is None and _is_open(place)
    finally:
        os.close(top)


def _is_open(place: str) -> bool:
    # One that is another user's is as it was: no program could change it.
    return stat.S_IMODE(os.stat(place).st_mode) == _OPEN or bool(os.statvfs(place).f_flag & os.ST_RDONLY)


def _emptied(place: str) -> list[str]:
    """Empties a directory, and makes it as it was at first; returns the names that are left."""
    try:
        if not _is_open(place):
            os.chmod(place, _OPEN)
        top = open_directory(place)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{place} ({type(error).__name__})"]
    try:
        for name in os.listdir(top):
            with suppress(OSError):
                _remove(top, name)
        return [f"{place}/{name!r:.60}" for name in os.listdir(top)]
    finally:
        os.close(top)


def _remove(top: int, name: str) -> None:
    if stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
        remove_below(top, name)
    else:
        os.unlink(name, dir_fd=top)


def _staying(spared: frozenset[int]) -> list[str]:
    """Returns the processes that do not end in a moment, as what told the end of a program does."""
    for _ in range(_ROUNDS):
        found, calm = _others()
        staying = [f"the process {pid}" for pid in found if pid not in spared]
        if calm and not staying:
            return []
        select.poll().poll(_ROUND_MS)
    return staying or ["a process that goes on as others"]


def _others() -> tuple[list[int], bool]:
    """Returns the processes beside this one and those above it, and whether none came or went.

    They are those that are told of. One that begins another and ends, again and again, is never at work when it is
    looked at.
    """
    parents, calm = {}, True
    names = _names()
    for name in names:
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            calm = calm and name == "1"  # some isolations cover that of the first process
            continue
        except OSError:
            continue
        if state not in (b"Z", b"X") or _has_threads(name):
            parents[int(name)] = int(parent)
    pid, above = os.getpid(), set()
    while pid and pid not in above:
        above.add(pid)
        pid = parents.get(pid, 0)
    return sorted(parents.keys() - above - {1}), calm and _names() <= names


def _names() -> set[str]:
    try:
        return set(filter(str.isdigit, os.listdir("/proc")))
    except OSError:
        return set()


def _has_threads(pid: str) -> bool:
    """Returns whether threads are left where the first one has ended."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False
