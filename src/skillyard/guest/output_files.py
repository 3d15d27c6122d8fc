"""Files that a run leaves in ``/workspace/out``: sent to the host as blobs that have a path.

The tree may be meant badly: nothing is opened that is not a regular file below the directory, no link is followed, no
FIFO waited for, and the numbers of entries, files, levels and bytes are bounded. The host holds the same limits again.
"""

from __future__ import annotations

import os
import stat
from itertools import islice

from .frames import PIECE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from .blobs import Blobs

OUT = "out"
MAX_PATH = 1024
MAX_DEPTH = 16
MAX_ENTRIES = 10_000
TOLD = 10
"""Names of files that are not sent, and of files elsewhere in the working directory."""
_LONGEST = 160
_SKIPPED_ELSEWHERE = (OUT, "__pycache__")
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_place(workspace: str) -> None:
    """Makes the directory ``out``, so that programs need not."""
    try:
        os.mkdir(f"{workspace}/{OUT}")
    except OSError:  # it is there already, or the disk is full: the code will see
        return


def send_left(workspace: str, request: Mapping[str, Any], blobs: Blobs) -> dict[str, object]:
    """Sends the files; returns notes on the others. ``skipped`` are [path, reason], ``others`` lie elsewhere in the
    working directory, ``more`` is the number of further ones."""
    limits = request.get("files") or {}
    left = Left(blobs, limits.get("count", 0), limits.get("each_bytes", 0), limits.get("bytes", 0))
    place = f"{workspace}/{OUT}"
    try:
        os.rmdir(place)  # the cheapest way to learn that it is empty, as it is after most runs
    except OSError:
        _send_below(left, place)
    notes: dict[str, object] = {"skipped": left.skipped, "others": _others(workspace, left), "more": left.more}
    return {name: value for name, value in notes.items() if value}


def send_new(workspace: str, request: Mapping[str, Any], blobs: Blobs, since_ns: int) -> dict[str, object]:
    """Sends the files that were written since a time; returns notes on those that are not sent."""
    limits = request.get("files") or {}
    left = Left(blobs, limits.get("count", 0), limits.get("each_bytes", 0), limits.get("bytes", 0), since_ns)
    _send_below(left, f"{workspace}/{OUT}")
    notes: dict[str, object] = {"skipped": left.skipped, "more": left.more}
    return {name: value for name, value in notes.items() if value}


def _send_below(left: Left, place: str) -> None:
    try:
        left.directory(os.open(place, _DIRECTORY), "", 0)
    except OSError:  # it is gone, or not a directory
        return


def _others(workspace: str, left: Left) -> list[str]:
    """Returns files and directories beside ``out``, which end with the run."""
    found: list[str] = []
    with os.scandir(workspace) as entries:
        for entry in islice(entries, MAX_ENTRIES):
            if entry.name in _SKIPPED_ELSEWHERE or entry.name.startswith("."):
                continue
            if len(found) < TOLD:
                found.append(_told(entry.name))
            else:
                left.more += 1
    return sorted(found)


class Left:
    """Sends files, within limits of their number and bytes, and notes the others."""

    def __init__(self, blobs: Blobs, count: int, each: int, together: int, since_ns: int = 0) -> None:
        self.skipped: list[list[str]] = []
        self.more = 0
        self._blobs = blobs
        self._count = count
        self._each = each
        self._together = together
        self._since_ns = since_ns
        self._entries = MAX_ENTRIES

    def directory(self, fd: int, path: str, depth: int) -> None:
        """Walks one directory; takes its descriptor."""
        try:
            for name in self._names(fd):
                self._entry(fd, name, f"{path}{name}", depth)
        finally:
            os.close(fd)

    def _names(self, fd: int) -> Iterator[str]:
        with os.scandir(fd) as entries:
            names = sorted(entry.name for entry in islice(entries, self._entries + 1))
        if len(names) > self._entries:
            self.skip("…", "entries")
        names = names[: self._entries]
        self._entries -= len(names)
        return iter(names)

    def _entry(self, fd: int, name: str, path: str, depth: int) -> None:
        try:
            mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
            if not is_plain(name) or len(path.encode("utf-8", "replace")) > MAX_PATH:
                self.skip(path, "name")
            elif stat.S_ISDIR(mode):
                if depth < MAX_DEPTH:
                    self.directory(os.open(name, _DIRECTORY, dir_fd=fd), f"{path}/", depth + 1)
                else:
                    self.skip(path, "depth")
            elif stat.S_ISREG(mode):
                self.file(os.open(name, _FILE, dir_fd=fd), path)
            else:
                self.skip(path, "kind")
        except OSError:
            self.skip(path, "unread")

    def file(self, fd: int, path: str) -> None:
        """Sends a file if it is regular and small enough. Takes its descriptor."""
        try:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode):
                self.skip(path, "kind")
            elif about.st_ctime_ns < self._since_ns:
                return
            elif self._count <= 0:
                self.skip(path, "count")
            elif about.st_size > self._each:
                self.skip(path, "size")
            elif about.st_size > self._together:
                self.skip(path, "together")
            else:
                self._send(fd, path, about.st_size)
        finally:
            os.close(fd)

    def _send(self, fd: int, path: str, size: int) -> None:
        """Sends as many bytes as the file had at the look. A thread of the code may still write."""
        try:
            number = self._blobs._begin_file(path)
        except RuntimeError:  # no more blobs
            self.skip(path, "count")
            return
        sent = 0
        try:
            while sent < size and (data := os.read(fd, min(PIECE, size - sent))):
                sent += len(data)
                self._blobs._piece(number, memoryview(data))
        except (OSError, RuntimeError) as error:
            self._blobs._abandon(number)
            self.skip(path, "together" if isinstance(error, RuntimeError) else "unread")
            return
        self._blobs._end(number, sent)
        self._count -= 1
        self._together -= sent

    def skip(self, path: str, why: str) -> None:
        if len(self.skipped) < TOLD:
            self.skipped.append([_told(path), why])
        else:
            self.more += 1


def _told(path: str) -> str:
    """A long one not in part: the host takes secrets out, and would not find a piece of one."""
    return path if len(path) <= _LONGEST else f"one of {len(path)} characters"


def is_plain(name: str) -> bool:
    """Returns whether every system takes the text as one name."""
    return name.isprintable() and "\\" not in name and "\ufffd" not in name
