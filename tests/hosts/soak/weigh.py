"""What a server and its keeper weigh at one moment, so that two moments can be compared."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.crash.leftovers import Footprint, Process

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Weight:
    """Counts, and bytes where the name says so. ``zygote`` is the youngest one's, the heaviest of its kind."""

    processes: int
    cgroups: int
    mounts: int
    files: int
    server_descriptors: int
    server_threads: int
    keeper_descriptors: int
    server_bytes: int
    keeper_bytes: int
    zygote_bytes: int
    wal_bytes: int
    database_bytes: int

    def __str__(self) -> str:
        return ", ".join(
            f"{name[:-6]} {value / MIB:.1f} MiB" if name.endswith("_bytes") else f"{name} {value}"
            for name, value in asdict(self).items()
        )


def weigh(footprint: Footprint, server: int, data_dir: Path) -> Weight:
    """``server`` is its pid. For a server that rests: what runs would be weighed too.

    Mounts of others on this host, which come and go, are not counted.
    """
    now, others = footprint.look(), _mounts("self")
    [keeper] = footprint.keepers()
    zygotes = [process for process in now.processes if is_zygote(process)]
    return Weight(
        processes=len(now.processes),
        cgroups=len(now.cgroups),
        mounts=len(now.mounts)
        + sum((_mounts(str(pid)) - others).total() for pid in (keeper, *(z.pid for z in zygotes))),
        files=len(now.files),
        server_descriptors=len(os.listdir(f"/proc/{server}/fd")),
        server_threads=len(os.listdir(f"/proc/{server}/task")),
        keeper_descriptors=len(os.listdir(f"/proc/{keeper}/fd")),
        server_bytes=_private(server),
        keeper_bytes=_private(keeper),
        zygote_bytes=max((_private(zygote.pid) for zygote in zygotes), default=0),
        wal_bytes=_size(data_dir / "skillyard.db-wal"),
        database_bytes=_size(data_dir / "skillyard.db"),
    )


def is_zygote(process: Process) -> bool:
    return process.depth == 2 and "native.inside.zygote" in process.command


def unshared(pid: int) -> int:
    """Bytes that only this process maps: what it would free (``Private_*`` of proc_pid_smaps_rollup(5))."""
    return sum(value for name, value in _rollup(pid) if name.startswith("Private_"))


def _private(pid: int) -> int:
    """Bytes of its own: anonymous memory, wherever it lies."""
    return sum(value for name, value in _rollup(pid) if name in ("Anonymous:", "SwapPss:"))


def _rollup(pid: int) -> list[tuple[str, int]]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return [(words[0], int(words[1]) * 1024) for words in map(str.split, lines)]


def _mounts(pid: str) -> Counter[str]:
    """Returns the mount points that a process sees, and how many mounts each has (proc_pid_mountinfo(5))."""
    return Counter(line.split()[4] for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines())


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
