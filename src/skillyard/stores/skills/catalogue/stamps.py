"""Cheap signatures of paths: whether anything at a path may have changed, by ``stat`` alone."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from skillyard.domain.skill.name import is_excluded
from skillyard.stores.skills.tree import Caps

Stamp = tuple[int, int, int, int, int]
Watched = dict[tuple[str, bool], Stamp | None]
"""(path, whether a link is followed) → what was seen there, None for nothing."""

TICK_NS = 50_000_000
"""Two writes within one tick of the file system's clock can leave the same times; 10 ms on slow kernels."""


def stamp(path: str, follow: bool) -> Stamp | None:
    """Mode, inode, size and both times in nanoseconds: the change time moves even when somebody sets the others."""
    try:
        found = os.stat(path) if follow else os.lstat(path)  # noqa: PTH116 - this is the hot path
    except OSError:
        return None
    return (found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def signature(stamps: Iterable[Stamp | None]) -> bytes:
    """16 bytes that differ when any of the stamps does; never the empty string, which stands for nothing that holds."""
    return hashlib.blake2b(repr(list(stamps)).encode(), digest_size=16).digest()


def bundle_stamps(directory: Path, caps: Caps) -> Watched:
    """Stamps of everything that belongs to a bundle, as far as its caps reach."""
    watched: Watched = {(str(directory), True): stamp(str(directory), True)}
    for path, is_link in _entries(str(directory), caps.depth + 1):
        watched[path, False] = stamp(path, False)
        if is_link:
            watched[path, True] = stamp(path, True)
        if len(watched) > 4 * caps.files:
            break
    return watched


def _entries(directory: str, depth: int) -> Iterator[tuple[str, bool]]:
    try:
        with os.scandir(directory) as found:
            entries = [entry for entry in found if not is_excluded(entry.name)]
    except OSError:
        return
    for entry in entries:
        yield entry.path, entry.is_symlink()
        if depth and entry.is_dir(follow_symlinks=False):
            yield from _entries(entry.path, depth - 1)


def is_settled(stamps: Iterable[Stamp | None], since_ns: int) -> bool:
    """Returns whether nothing was written just before ``since_ns``, when the reading began.

    Then equal stamps mean equal bytes. Times in the future come from another clock and say nothing."""
    newest = max((max(seen[3], seen[4]) for seen in stamps if seen), default=0)
    return not since_ns - TICK_NS <= newest <= since_ns + 40 * TICK_NS
