"""What a catalogue of many skills costs: to start with, to list, to describe, to notice a change, to hold in memory."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.made_skills import name_of, write_skills, write_version
from skillyard.bench.turns import Rounds, in_ms, median
from skillyard.client.sync import SyncClient
from skillyard.config.settings import load_settings
from skillyard.domain.skill.name import GUIDE
from skillyard.runtime import Runtime
from skillyard.server_process import ServerProcess

PAGE = 50
STARTS = 3
_BOUND_S = 60.0
_RESIDENT = re.compile(r"^VmRSS:\s+(\d+) kB$", re.MULTILINE)
_TITLES = {
    "page": f"list {PAGE} skills with summaries",
    "page_http": f"list {PAGE} skills with summaries, over HTTP",
    "first": "describe a skill that nobody asked for before",
    "again": "describe one that was asked for",
    "first_http": "describe a skill that nobody asked for before, over HTTP",
}


@dataclass(slots=True)
class Shelf:
    """Seconds. ``bare_starts`` and ``bare_bytes`` are of a runtime and a server without any skills."""

    names: int
    versions: int
    first_start_s: float = 0.0
    starts: list[float] = field(default_factory=list)
    bare_starts: list[float] = field(default_factory=list)
    noticed_s: list[float] = field(default_factory=list)
    bytes: int = 0
    bare_bytes: int = 0
    index_bytes: int = 0
    asked: dict[str, Rounds] = field(default_factory=lambda: {name: Rounds() for name in _TITLES})

    @property
    def bundles(self) -> int:
        return self.names * self.versions

    @property
    def start_s(self) -> float:
        """What the skills add to a start."""
        return max(median(self.starts) - median(self.bare_starts), 0.0)

    @property
    def page_ms(self) -> float:
        return in_ms(self.asked["page"].samples)["p50_ms"]

    def rows(self) -> Iterator[dict[str, Any]]:
        for name, title in _TITLES.items():
            if samples := self.asked[name].samples:
                yield {"id": name, "title": title, "samples": len(samples), **in_ms(samples)}

    def as_dict(self) -> dict[str, Any]:
        return {
            "skills": self.names,
            "bundles": self.bundles,
            "first_start_s": round(self.first_start_s, 3),
            "start_s": round(median(self.starts), 3),
            "bare_start_s": round(median(self.bare_starts), 3),
            "noticed_s": round(median(self.noticed_s), 3),
            "memory_bytes": self.bytes - self.bare_bytes,
            "index_bytes": self.index_bytes,
            "asked": list(self.rows()),
        }


async def measure(home: Path, names: int, versions: int, rounds: int) -> Shelf:
    """``versions`` of each of ``names`` skills. Raises what a runtime, a server and their
    methods raise, and TimeoutError."""
    shelf, choice = Shelf(names, versions), random.Random(names)
    await asyncio.to_thread(lambda: list(write_skills(home / "skills", names, versions)))
    for number in range(STARTS):
        began = time.perf_counter()
        async with _runtime(home / f"bare-{number}", home / "nothing"):
            shelf.bare_starts.append(time.perf_counter() - began)
    for number in range(STARTS + 1):
        began = time.perf_counter()
        async with _runtime(home / "data", home / "skills") as runtime:
            took = time.perf_counter() - began
            if number == 0:
                shelf.first_start_s = took
                continue
            shelf.starts.append(took)
            if number == STARTS:
                await _ask(runtime, shelf, rounds, choice)
                await _change(runtime, shelf, home / "skills")
    shelf.index_bytes = (home / "data" / "catalogue.db").stat().st_size
    await asyncio.to_thread(_serve, home, shelf, rounds, choice)
    return shelf


@asynccontextmanager
async def _runtime(data_dir: Path, skills: Path) -> AsyncIterator[Runtime]:
    skills.mkdir(exist_ok=True)
    settings = load_settings(data_dir=data_dir, skills_dirs=[skills], native={"ready": 0})
    async with Runtime(settings=settings) as runtime:
        yield runtime


async def _ask(runtime: Runtime, shelf: Shelf, rounds: int, choice: random.Random) -> None:
    for number in range(rounds):
        cursor = None
        for _ in range(3):
            began = time.perf_counter()
            page = await runtime.list_skills(detail="summary", limit=PAGE, cursor=cursor)
            shelf.asked["page"].add(number, [time.perf_counter() - began])
            cursor = page["next_cursor"]
            if cursor is None:
                break
        name = name_of(choice.randrange(shelf.names))
        for kind in ("first", "again"):
            began = time.perf_counter()
            await runtime.describe_skill(name)
            shelf.asked[kind].add(number, [time.perf_counter() - began])


async def _change(runtime: Runtime, shelf: Shelf, root: Path) -> None:
    """A new version of a skill shows in the list."""
    for number in range(STARTS):
        write_version(root / name_of(number), number, 90)
        began = time.perf_counter()
        async with asyncio.timeout(_BOUND_S):
            while await _latest(runtime, name_of(number)) != "1.90.0":  # noqa: ASYNC110 - as a client asks
                await asyncio.sleep(0.02)
        shelf.noticed_s.append(time.perf_counter() - began)


async def _latest(runtime: Runtime, name: str) -> str:
    [row] = (await runtime.list_skills(namespace=name))["skills"]
    return str(row["version"])


def _serve(home: Path, shelf: Shelf, rounds: int, choice: random.Random) -> None:
    settings = {"SKILLYARD_NATIVE__READY": "0"}
    with (
        ServerProcess(home / "served", skills_dirs=[home / "nothing"], settings=settings) as server,
        SyncClient(data_dir=server.data_dir) as client,
    ):
        for _ in range(rounds):
            client.list_skills(detail="summary")
            client.describe_skill(GUIDE)
        shelf.bare_bytes = _resident(server.pid)
    with (
        ServerProcess(home / "data", skills_dirs=[home / "skills"], settings=settings) as server,
        SyncClient(data_dir=server.data_dir) as client,
    ):
        for number in range(rounds):
            _ask_over_http(client, shelf, number, name_of(choice.randrange(shelf.names)))
        shelf.bytes = _resident(server.pid)


def _ask_over_http(client: SyncClient, shelf: Shelf, number: int, name: str) -> None:
    began = time.perf_counter()
    client.list_skills(detail="summary", limit=PAGE)
    listed = time.perf_counter()
    client.describe_skill(name)
    shelf.asked["page_http"].add(number, [listed - began])
    shelf.asked["first_http"].add(number, [time.perf_counter() - listed])


def _resident(pid: int) -> int:
    found = _RESIDENT.search(Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0
