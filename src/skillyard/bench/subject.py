"""The job of the benchmark, and the subjects that do it: awaited or blocking."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import SubprocessError
from typing import Any, Protocol

_NUMBERS = [3, 1, 4, 1, 5, 9, 2, 6]

PLAIN = """
import json, sys
request = json.loads(sys.argv[1])
sys.path[:0] = request["path"]
names = {}
exec(request["code"], names)
print(json.dumps(names["main"](request["args"])))
"""
"""How an interpreter without skillyard does it: the request is its argument, the result its output."""


@dataclass(frozen=True, slots=True)
class Job:
    """``environment`` is what skillyard calls the packages that it needs."""

    name: str
    code: str
    environment: str = "base"

    @property
    def args(self) -> dict[str, Any]:
        return {"xs": _NUMBERS}

    def request(self, packages: Path | None) -> str:
        """Returns the argument of :data:`PLAIN`."""
        return json.dumps({"code": self.code, "args": self.args, "path": [str(packages)] if packages else []})

    def check(self, output: Any) -> None:
        """Raises WrongResult: a fast wrong answer counts for nothing."""
        if output != {"sum": sum(_NUMBERS)}:
            raise WrongResult(f"the job '{self.name}' gave {str(output)[:200]!r}")


class WrongResult(Exception):
    """A job did not give what it should, or gave nothing."""


SUM = Job("sum", 'def main(args): return {"sum": sum(args["xs"])}')
DATA = Job(
    "numpy+pandas",
    "import numpy, pandas\n"
    'def main(args): return {"sum": int(pandas.Series(numpy.array(args["xs"], dtype="int64")).sum())}',
    environment="data",
)
NUMPY = Job(
    "numpy",
    'import numpy\ndef main(args): return {"sum": int(numpy.array(args["xs"], dtype="int64").sum())}',
    environment="numpy",
)


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
        """Notes the errors of a peer, and raises those of our own subjects."""
        try:
            yield
        except (WrongResult, OSError, ValueError, SubprocessError) as error:
            if not subject.peer:
                raise
            self[subject.id] = " ".join(str(error).split())[:200]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A subject that is not measured, and the reason."""

    id: str
    title: str
    reason: str
