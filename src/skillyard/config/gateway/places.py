"""Directories of the host that an operator shows to sandboxes: which may not be."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from skillyard.domain.errors import InvalidInput

MOST_ENTRIES = 200_000
"""Entries of a directory that are looked at."""


def check_closed(field: str, shown: Path, closed: Iterable[Path], *, within: bool = True) -> None:
    """Raises InvalidInput for a directory that holds a closed place, or lies in one.

    Places are told by devices and inodes, under whatever names. With ``within`` false it may lie in one.
    """
    own = _identity(shown)
    for path in closed:
        if own is not None and own in set(_identities(path)):
            rule = f"holds {path}, which no sandbox may see; name the directories that the program needs"
            raise InvalidInput(field, rule, str(shown))
        there = _identity(path)
        if within and there is not None and any(_identity(part) == there for part in (shown, *shown.parents)):
            raise InvalidInput(field, f"lies in {path}, which no sandbox may see", str(shown))


def check_no_sockets(field: str, shown: Path) -> None:
    """Raises InvalidInput for a directory with a unix socket.

    It would lead to a program of the host, and a mount that is read-only does not close it. Raises InvalidInput too for
    one that is too large to be looked at.
    """
    seen = 0
    for above, _, names in os.walk(shown):
        for name in names:
            seen += 1
            path = Path(above, name)
            try:
                kind = path.lstat().st_mode
            except OSError:
                continue
            if stat.S_ISSOCK(kind):
                rule = f"holds the socket {path}, which leads to a program of this host; name a directory without one"
                raise InvalidInput(field, rule, str(shown))
        if seen > MOST_ENTRIES:
            rule = f"has more than {MOST_ENTRIES} files; name the directory that the program needs"
            raise InvalidInput(field, rule, str(shown))


def _identities(path: Path) -> Iterator[tuple[int, int]]:
    for part in (path, *path.parents):
        if (found := _identity(part)) is not None:
            yield found


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None
