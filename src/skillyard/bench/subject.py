"""Who is measured: something that does the job once, awaited or blocking."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from subprocess import SubprocessError
from typing import Protocol

from skillyard.bench.job import Job, WrongResult


class Doing(Protocol):
    """How a subject does its job."""

    async def once(self) -> float:
        """One job, checked; the seconds that its caller waited."""
        ...

    async def until(self, deadline: float) -> int:
        """Job after job until the moment ``deadline`` (of ``time.perf_counter``); how many."""
        ...


class Awaited:
    """A coroutine function on this event loop."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self.work = work

    async def once(self) -> float:
        began = time.perf_counter()
        await self.work()
        return time.perf_counter() - began

    async def until(self, deadline: float) -> int:
        count = 0
        while time.perf_counter() < deadline:
            await self.work()
            count += 1
        return count


class Blocking:
    """A function, called and timed in a thread of its own."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work

    async def once(self) -> float:
        return await asyncio.to_thread(self._timed)

    async def until(self, deadline: float) -> int:
        return await asyncio.to_thread(self._repeated, deadline)

    def _timed(self) -> float:
        began = time.perf_counter()
        self.work()
        return time.perf_counter() - began

    def _repeated(self, deadline: float) -> int:
        count = 0
        while time.perf_counter() < deadline:
            self.work()
            count += 1
        return count


async def no_rest() -> None:
    """For who needs nothing before a job."""


@dataclass(frozen=True, slots=True)
class Subject:
    """``id`` is its name in JSON, ``title`` in tables, ``walls`` says what stands round the job.

    ``rest`` is awaited before each job that is timed for latency, outside the time. ``every`` is how often it
    takes part: in each round, or in every n-th because it is slow. ``block`` is its jobs in one round.
    """

    id: str
    title: str
    walls: str
    job: Job
    doing: Doing
    rest: Callable[[], Awaitable[None]] = no_rest
    block: int = 2
    every: int = 1
    loaded: bool = False
    """Whether its throughput is measured too."""
    peer: bool = False
    """Whether it is somebody else's: then its failure ends its part only."""


class GivenUp(dict[str, str]):
    """Peers that failed on the way: why, by id. They are asked no more."""

    @contextmanager
    def tolerating(self, subject: Subject) -> Iterator[None]:
        """What a peer raises is noted; what we raise is raised."""
        try:
            yield
        except (WrongResult, OSError, ValueError, SubprocessError) as error:
            if not subject.peer:
                raise
            self[subject.id] = " ".join(str(error).split())[:200]


@dataclass(frozen=True, slots=True)
class Skipped:
    """Who is not measured, and why."""

    id: str
    title: str
    reason: str
