"""What a gVisor sandbox uses. Its programs are no processes of the host: what counts is its sentry.

All of the programs' memory, and of the files they write, is in memory files of the sentry: st_blocks of those is what
is really held. What the sentry itself needs grows with what they do, and is counted beyond an allowance.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from skillyard.sandbox.native.keeper.account import Used, cpu_seconds
from skillyard.sandbox.native.keeper.request import MIB
from skillyard.sandbox.native.keeper.watch.processes import tree_of

_BLOCK = 512
_ALLOWANCE = 48 * MIB


@dataclass(frozen=True, slots=True)
class Sentry:
    """``files`` are the paths of its memory files, as /proc shows its descriptors."""

    pid: int
    files: tuple[str, ...]

    def guest_bytes(self) -> int:
        total = 0
        for path in self.files:
            with contextlib.suppress(OSError):
                total += os.stat(path).st_blocks * _BLOCK
        return total

    def own_bytes(self) -> int:
        return _status_bytes(self.pid, "RssAnon:")


def find_sentry(root: int) -> Sentry | None:
    """The process below ``root`` that holds the memory of the programs."""
    for pid in tree_of(root):
        files = tuple(_memory_files(pid))
        if files and _is_boot(pid):
            return Sentry(pid, files)
    return None


class SentryMeter:
    """Counts from :meth:`begin` on: what the sandbox held and used before it was lent is nobody's."""

    worker = 0

    def __init__(self) -> None:
        self.used = Used()
        self.sentry: Sentry | None = None
        self._root = -1
        self._guest_before = self._own_before = 0
        self._seconds_before = self._seen_seconds = 0.0

    def meet(self, init: int) -> None:
        self._root = init
        self.sentry = find_sentry(init)

    def begin(self) -> None:
        if self.sentry is not None:
            self._guest_before, self._own_before = self.sentry.guest_bytes(), self.sentry.own_bytes()
        self._seconds_before = _seconds(self._root)

    def held(self) -> int:
        """Returns bytes of memory and of files that the programs hold, as far as the host can tell."""
        if self.sentry is None:
            return 0
        own = self.sentry.own_bytes() - self._own_before - _ALLOWANCE
        return max(0, self.sentry.guest_bytes() - self._guest_before) + max(0, own)

    def told(self, cpu_seconds: float, peak_rss: int) -> None:
        """gVisor counts as used what a program wanted to use of processors: the host knows better. The largest that one
        process was, it knows best."""
        self.used.peak_rss = max(self.used.peak_rss, peak_rss)
        self.look()

    def look(self) -> None:
        """Looks before the end: afterwards nobody can tell what the sentry and its stubs used."""
        if self._root >= 0:
            self.used.saw(self.held())
            self._seen_seconds = max(self._seen_seconds, _seconds(self._root) - self._seconds_before)
            self.used.cpu_seconds = self._seen_seconds

    def settle(self, pid: int) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        self.used.cpu_seconds = self._seen_seconds or None


def _memory_files(pid: int) -> list[str]:
    found = []
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{name}"
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith("/memfd:"):
                    found.append(path)
    except OSError:
        return []
    return found


def _is_boot(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().split(b"\0")
        return bool(words) and words[0] == b"runsc-sandbox"
    return False


def _status_bytes(pid: int, key: str) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith(key)), 0)
    return 0


def _seconds(root: int) -> float:
    """Returns the processor time of a whole tree so far, with those of it that have ended."""
    total = 0.0
    for pid in tree_of(root):
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += cpu_seconds(pid)
    return total
