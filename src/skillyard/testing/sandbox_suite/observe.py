"""The host's view from outside: the suite's second witness beside the programs inside."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from skillyard.testing.sandbox_suite.check import expect


def processes(marker: str) -> list[int]:
    """Pids of this host's processes whose command line holds ``marker``; zombies have none."""
    wanted = marker.encode()
    return [pid for pid in _pids() if wanted in _bytes(f"/proc/{pid}/cmdline")]


def expect_gone(marker: str, when: str) -> None:
    """Raises Failed when a process with ``marker`` is left."""
    left = processes(marker)
    expect(not left, f"no process is left {when}", [_bytes(f"/proc/{pid}/cmdline")[:200] for pid in left])


def user_ids(pid: int) -> set[int]:
    """Real, effective, saved and file-system uid of a process, as this host counts them."""
    for line in _bytes(f"/proc/{pid}/status").decode(errors="replace").splitlines():
        if line.startswith("Uid:"):
            return {int(word) for word in line.split()[1:]}
    return set()


def descriptors() -> int:
    """Returns the open descriptors of the calling process, after the garbage was collected."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def children() -> int:
    """Living and dead children of the calling process."""
    own = str(os.getpid())
    return sum(1 for pid in _pids() if _parent(pid) == own)


@contextmanager
def directory(path: Path) -> Iterator[Path]:
    """A directory of the host for the time of a check, removed whatever its modes are."""
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        _remove(path)


def seal(path: Path) -> None:
    """The modes that stores give what they mount: files 0444, directories 0555."""
    for below in path.rglob("*"):
        below.chmod(0o555 if below.is_dir() else 0o444)
    path.chmod(0o555 if path.is_dir() else 0o444)


def _remove(path: Path) -> None:
    path.chmod(0o700)
    for below in path.iterdir():
        if below.is_dir() and not below.is_symlink():
            _remove(below)
        else:
            below.unlink()
    path.rmdir()


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _parent(pid: int) -> str:
    stat = _bytes(f"/proc/{pid}/stat").decode(errors="replace")
    return stat.rpartition(")")[2].split()[1] if stat else ""


def _bytes(path: str) -> bytes:
    with suppress(OSError):
        return Path(path).read_bytes()
    return b""
