"""Cheap signatures of paths: whether anything at a path may have changed, by ``stat`` alone."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator

from skillyard.domain.skill.name import is_excluded
from skillyard.stores.skills.tree import Caps
from skillyard.values import dataclass

Stamp = tuple[int, int, int, int, int]
Watched = dict[tuple[str, bool], Stamp | None]
"""(path, whether a link is followed) → the stamp, None where nothing is."""

TICK_NS = 50_000_000
"""Two writes within one tick of the file system's clock can leave the same times; 10 ms on slow kernels."""


def stamp(path: str, follow: bool) -> Stamp | None:
    """Returns mode, inode, size and both times in nanoseconds.

    The change time moves even when somebody sets the other back."""
    try:
        found = os.stat(path) if follow else os.lstat(path)  # noqa: PTH116 - this is the hot path
    except OSError:
        return None
    return (found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def signature(stamps: Iterable[Stamp | None]) -> bytes:
    """Returns 16 bytes that differ when any of the stamps does; never an empty signature."""
    return hashlib.blake2b(repr(list(stamps)).encode(), digest_size=16).digest()


def is_settled(stamps: Iterable[Stamp | None], since_ns: int) -> bool:
    """Returns whether nothing was written just before ``since_ns``, when the reading began.

    Then equal stamps mean equal bytes. Times in the future come from another clock and prove nothing."""
    newest = max((max(seen[3], seen[4]) for seen in stamps if seen), default=0)
    return not since_ns - TICK_NS <= newest <= since_ns + 40 * TICK_NS


NO_PATHS = "[[],[]]"


@dataclass(frozen=True, slots=True)
class Watch:
    """The stamps of a bundle. ``paths`` are relative to it, as JSON: those whose links are not followed, then those
    whose links are. ``stamp`` is their signature, empty when an equal one would not mean equal bytes."""

    paths: str = NO_PATHS
    count: int = 0
    stamp: bytes = b""

    def is_at(self, directory: str) -> bool:
        """Returns whether the bundle is what it was, by stamps alone."""
        if not self.stamp:
            return False
        plain, followed = json.loads(self.paths)
        stamps = [stamp(directory + path, False) for path in plain]
        stamps += [stamp(directory + path, True) for path in followed]
        return signature(stamps) == self.stamp


def watch(directory: str, caps: Caps) -> Watch:
    """Returns the stamps of a bundle. They must be taken before its files are read."""
    now = time.time_ns()
    stamps = bundle_stamps(directory, caps)
    behind = len(directory)
    plain = [(path[behind:], seen) for (path, follow), seen in stamps.items() if not follow]
    followed = [(path[behind:], seen) for (path, follow), seen in stamps.items() if follow]
    seen = [stamp for _, stamp in (*plain, *followed)]
    paths = json.dumps([[path for path, _ in plain], [path for path, _ in followed]])
    return Watch(paths, len(seen), signature(seen) if is_settled(seen, now) else b"")


def bundle_stamps(directory: str, caps: Caps) -> Watched:
    """Returns the stamps of everything that belongs to a bundle, as far as its caps reach."""
    watched: Watched = {(directory, True): stamp(directory, True)}
    for path, is_link in _entries(directory, caps.depth + 1):
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
