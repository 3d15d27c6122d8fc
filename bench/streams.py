"""The bytes of a running sandbox: a round trip over its pipes, small files, and readers that get nothing."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillyard.bench.turns import Rounds, median
from skillyard.domain.errors import SkillyardError
from skillyard.domain.sandbox.spec import Argv, SandboxSpec, Stream
from skillyard.domain.work.limits import Limits
from skillyard.ports.sandbox import Process, Sandbox
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.grounds.landlock.backend import LandlockBackend

FILES, FOLLOWERS = 1000, 100
_ECHO = "import os\nwhile data := os.read(0, 65536): os.write(1, data)"
_TRIPS = 40
BACKENDS: dict[str, Callable[[Path], NativeBackend]] = {"native": NativeBackend, "landlock": LandlockBackend}


@dataclass(slots=True)
class Streams:
    """Seconds by backend: round trips, and ways of :data:`FILES` small files in and out.

    ``idle`` is the processor time that :data:`FOLLOWERS` readers of a program that writes nothing cost server and
    keeper in a second.
    """

    pipe: Rounds = field(default_factory=Rounds)
    tar: Rounds = field(default_factory=Rounds)
    trips: dict[str, Rounds] = field(default_factory=dict)
    trees: dict[str, Rounds] = field(default_factory=dict)
    singles: dict[str, Rounds] = field(default_factory=dict)
    idle: dict[str, float] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)

    def rows(self) -> Iterator[tuple[str, float | None]]:
        """Yields titles and numbers: excesses in milliseconds, and ratios."""
        for name, trips in self.trips.items():
            added = trips.excess(self.pipe)
            yield f"{name}: a round trip, beyond a plain pipe's, ms", None if added is None else added * 1000
            yield f"{name}: {FILES:,} small files in and out as streams: of tar", self.trees[name].ratio(self.tar)
            yield f"{name}: {FILES:,} small files, one by one: of tar", self.singles[name].ratio(self.tar)
            yield f"{name}: {FOLLOWERS} readers of nothing, ms of processor time a second", self.idle[name] * 1000

    def worst_added_ms(self) -> float | None:
        """Returns the largest excess of a round trip over a plain pipe's; None without any."""
        added = [found for trips in self.trips.values() if (found := trips.excess(self.pipe)) is not None]
        return round(max(added) * 1000, 3) if added else None

    def worst_idle_ms(self) -> float | None:
        return round(max(self.idle.values()) * 1000, 3) if self.idle else None

    def worst_trees(self) -> float | None:
        ratios = [found for trees in self.trees.values() if (found := trees.ratio(self.tar)) is not None]
        return round(max(ratios), 2) if ratios else None

    def as_dict(self) -> dict[str, Any]:
        told = {name: value and round(value, 3) for name, value in self.rows()}
        return {**told, "pipe_ms": round(median(self.pipe.samples) * 1000, 3), "lacking": self.lacking}


async def measure(home: Path, rounds: int) -> Streams:
    """Measures in turns, in the directory ``home``, which it makes. A backend that does not stand here is left out."""
    home.mkdir(parents=True)
    found = Streams()
    source = home / "source"
    _make_files(source)
    for name, make in BACKENDS.items():
        backend = make(home / name)
        try:
            await _measure(name, backend, found, source, home, rounds)
        except SkillyardError as error:
            found.lacking[name] = error.message
        finally:
            await backend.close()
    return found


async def _measure(name: str, backend: NativeBackend, found: Streams, source: Path, home: Path, rounds: int) -> None:
    offered = await backend.probe()
    if not offered.ready:
        raise SkillyardError(offered.facts.get("why", "not ready"))
    spec = SandboxSpec(Limits(timeout_ms=600_000), allow_degraded=frozenset(offered.protections))
    sandbox = await backend.create(spec, "bench")
    trips, trees, singles = Rounds(), Rounds(), Rounds()
    packed = _packed(source)
    for number in range(rounds):
        at = number if name == next(iter(BACKENDS)) else number + rounds  # a base of its own, under the same load
        found.pipe.add(at, await asyncio.to_thread(_pipe_trips))
        trips.add(at, await _sandbox_trips(sandbox, f"trips-{number}"))
        found.tar.add(at, [await asyncio.to_thread(_tar, source, home / f"tar-{name}-{number}")])
        trees.add(at, [await _trees(sandbox, packed, f"/workspace/{number}")])
        singles.add(at, [await _singles(sandbox, f"/workspace/s{number}")])
    found.trips[name], found.trees[name], found.singles[name] = trips, trees, singles
    await backend.destroy(sandbox.handle)
    silent = await backend.create(spec, "silent")
    found.idle[name] = await _idle(home / name, silent)
    await backend.destroy(silent.handle)


def _pipe_trips() -> list[float]:
    command = [sys.executable, "-I", "-S", "-c", _ECHO]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        took = []
        for _ in range(_TRIPS):
            began = time.perf_counter()
            process.stdin.write(b"x")
            process.stdout.read(1)
            took.append(time.perf_counter() - began)
        process.stdin.close()
    return took[1:]


async def _sandbox_trips(sandbox: Sandbox, id: str) -> list[float]:
    process = await sandbox.start(Argv(("python3", "-I", "-S", "-c", _ECHO), stdin=True), id=id)
    output = process.output(Stream.STDOUT)
    took = []
    for _ in range(_TRIPS):
        began = time.perf_counter()
        await process.send(b"x")
        await anext(output)
        took.append(time.perf_counter() - began)
    await process.close_stdin()
    await process.wait()
    return took[1:]


def _make_files(directory: Path) -> None:
    directory.mkdir()
    for number in range(FILES):
        (directory / f"{number:04d}").write_bytes(b"%d" % number * 50)


def _packed(directory: Path) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.add(directory, ".")
    return out.getvalue()


def _tar(source: Path, target: Path) -> float:
    """Returns how long tar takes for the files out of a directory and into another one, in two processes."""
    target.mkdir()
    began = time.perf_counter()
    packed = subprocess.run(["tar", "-C", source, "-c", "."], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-C", target, "-x"], input=packed, check=True)
    return time.perf_counter() - began


async def _trees(sandbox: Sandbox, packed: bytes, path: str) -> float:
    began = time.perf_counter()
    await sandbox.put(path, _pieces(packed))
    out = [piece async for piece in sandbox.get(path)]
    took = time.perf_counter() - began
    assert sum(map(len, out)) >= FILES * 512
    return took


async def _singles(sandbox: Sandbox, path: str) -> float:
    began = time.perf_counter()
    for number in range(FILES):
        await sandbox.write(f"{path}/{number}", _pieces(b"%d" % number * 50))
    for number in range(FILES):
        async for _ in sandbox.read(f"{path}/{number}"):
            pass
    return time.perf_counter() - began


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 1 << 18):
        yield data[at : at + (1 << 18)]


async def _idle(home: Path, sandbox: Sandbox) -> float:
    """Returns the processor time that readers of nothing cost in a second, beyond that of the waiting program."""
    process = await sandbox.start(Argv(("cat",), stdin=True), id="idle")
    await asyncio.sleep(2.0)  # until programs of the files have ended, and the pool is full
    bare = await _second(home)
    readers = [asyncio.create_task(_read(process)) for _ in range(FOLLOWERS)]
    await asyncio.sleep(0.5)
    used = await _second(home)
    await process.close_stdin()
    await asyncio.gather(*readers)
    return used - bare


async def _second(home: Path) -> float:
    began, at = _used(home) + time.process_time(), time.perf_counter()
    await asyncio.sleep(4.0)
    return (_used(home) + time.process_time() - began) / (time.perf_counter() - at)


def _used(run_dir: Path) -> float:
    """Returns the processor seconds of all processes that were started with ``run_dir``: a keeper's."""
    ticks, wanted = 0, os.fsencode(run_dir.resolve())
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (process / "cmdline").read_bytes():
                ticks += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:13]))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


async def _read(process: Process) -> None:
    async for _ in process.output(Stream.STDOUT):
        pass
