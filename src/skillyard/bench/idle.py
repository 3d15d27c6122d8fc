"""Measures ready sandboxes while they wait, through a keeper of their own and /proc."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from skillyard.config.settings import load_settings
from skillyard.data_dir import DataDir
from skillyard.domain.sandbox.spec import SandboxSpec
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.registry import best_with_network
from skillyard.wiring import make_backend

_PROC = Path("/proc")
_PARENT = re.compile(r"^PPid:\t(\d+)$", re.MULTILINE)
_NUMBERS = re.compile(r"^NSpid:((?:\t\d+)+)$", re.MULTILINE)


def family(run_dir: Path) -> dict[int, int]:
    """Returns keepers and their descendants: pid, and its depth in pid namespaces."""
    status = {int(name): proc_text(f"{name}/status") for name in os.listdir(_PROC) if name.isdigit()}  # noqa: PTH208
    parents = {pid: int(found[1]) for pid, text in status.items() if (found := _PARENT.search(text))}
    keepers = _keepers(run_dir, parents)
    return {pid: _depth(status[pid]) for pid in parents if _descends(pid, keepers, parents)}


def sandboxed(run_dir: Path) -> list[int]:
    """Returns the pids inside sandboxes: they live in a pid namespace below the keeper's."""
    depths = family(run_dir)
    keepers = _keepers(run_dir, depths)
    own = max((depths[pid] for pid in keepers), default=0)
    return [pid for pid, depth in depths.items() if depth > own]


def alive(pid: int) -> bool:
    """Returns whether it still runs; a dead one that nobody has waited for does not."""
    return re.search(r"^State:\t[^ZX]", proc_text(f"{pid}/status"), re.MULTILINE) is not None


def proc_text(name: str) -> str:
    """Returns the text of a file below /proc; empty when it is gone, or not ours to see."""
    try:
        return (_PROC / name).read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def _keepers(run_dir: Path, pids: Mapping[int, int]) -> set[int]:
    """Returns the keepers: each carries its directory in its arguments."""
    wanted = f'"{run_dir.resolve()}"'
    return {pid for pid in pids if wanted in proc_text(f"{pid}/cmdline")}


def _descends(pid: int, ancestors: set[int], parents: Mapping[int, int]) -> bool:
    while pid in parents and pid not in ancestors:
        pid = parents[pid]
    return pid in ancestors


def _depth(status: str) -> int:
    found = _NUMBERS.search(status)
    return found[1].count("\t") if found else 0


KIB = 1024
_PATIENCE_S = 60.0
_EACH_S = 0.25
"""How long one sandbox may take: seconds, on a machine that is busy with other things."""
_UNSHARED = re.compile(r"^Private_(?:Clean|Dirty):\s+(\d+) kB$", re.MULTILINE)
_SPARE_IDS = 64


@dataclass(frozen=True, slots=True)
class Idle:
    """The cost of sandboxes that wait.

    ``unshared_bytes`` is the memory that the processes of one hold alone, None where the kernel hides it.
    ``host_bytes`` is the fall of the host's available memory for one, with page tables and namespaces; None when it did
    not fall, because others gave memory back meanwhile.
    """

    sandboxes: int
    made_s: float
    ended_s: float
    processes: int
    unshared_bytes: int | None
    host_bytes: int | None


async def measure(home: Path, count: int) -> Idle:
    """Makes ``count`` ready sandboxes at once, looks at them and ends them. Raises SandboxFault, TimeoutError."""
    places = DataDir(home)
    settings = load_settings(data_dir=home, native={"ready": count, "uid_count": max(8192, count + _SPARE_IDS)})
    backend = make_backend(best_with_network(), settings, places.run)
    assert isinstance(backend, NativeBackend)
    try:
        await _ready(backend, 0)
        before, began = _available(), time.perf_counter()
        await backend.prepare(SandboxSpec())
        await _ready(backend, count)
        made = time.perf_counter() - began
        fell, pids = before - _available(), sandboxed(places.run)
        unshared = _unshared(pids)
    finally:
        began = time.perf_counter()
        await backend.close()
    ended = time.perf_counter() - began
    each = None if unshared is None else unshared // count
    return Idle(count, made, ended, len(pids), each, fell // count if fell > 0 else None)


async def _ready(backend: NativeBackend, count: int) -> None:
    async with asyncio.timeout(_PATIENCE_S + count * _EACH_S):
        while (await backend.stats())["ready"] < count:  # noqa: ASYNC110 - the keeper has no event for it
            await asyncio.sleep(0.02)


def _unshared(pids: list[int]) -> int | None:
    """Returns the bytes of the processes that are still there."""
    texts = [text for pid in pids if (text := proc_text(f"{pid}/smaps_rollup"))]
    if not texts:
        return None
    return sum(int(kib) * KIB for text in texts for kib in _UNSHARED.findall(text))


def _available() -> int:
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", proc_text("meminfo"), re.MULTILINE)
    return int(found[1]) * KIB if found else 0
