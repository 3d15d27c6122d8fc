"""The runs at work in this server: their ends, the calls that wait for them, and draining."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import field
from typing import Any, TypeVar

from skillyard.domain.errors import Busy
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.sandbox.spec import Owner
from skillyard.domain.work.record import RunRecord
from skillyard.engine.commands.tails import Live
from skillyard.engine.method import BOOLEAN, INTEGER, Method, answer, described, obj
from skillyard.engine.network.run_network import RunNetwork
from skillyard.engine.runs.record import Ledger
from skillyard.engine.secrets.redact import NOTHING, Redactor
from skillyard.engine.shapes import STRINGS
from skillyard.engine.shares import Budget
from skillyard.ports.records import RecordStore
from skillyard.ports.sandbox import Process, Sandbox
from skillyard.values import dataclass

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class ActiveRun:
    """One run at work in this server.

    ``ledger`` is there when it outlives its server. ``cancel_reason`` is set once somebody asked it to end.
    ``redactor`` makes a fresh one for each reading of its log. ``interrupt`` ends its waiting, before it has a sandbox.
    ``live`` hears the output of a command. ``log_problem`` says why its output is not taken now.
    """

    run_id: str
    principal: str
    ledger: Ledger | None = None
    redactor: Callable[[], Redactor] = NOTHING.stream
    live: Live | None = None
    network: RunNetwork | None = None
    process: Process | None = None
    sandbox: Sandbox | None = None
    cancel_reason: str | None = None
    log_problem: str = ""
    interrupt: Callable[[], object] | None = None
    _waiters: list[asyncio.Future[None]] = field(default_factory=list)
    _starters: list[asyncio.Future[None]] = field(default_factory=list)

    def begin(self, process: Process, sandbox: Sandbox) -> None:
        """Its program was started."""
        self.process, self.sandbox = process, sandbox
        _wake(self._starters)

    def starts_again(self) -> None:
        """Its sandbox is gone, and it waits for another one."""
        self.process = self.sandbox = self.live = self.network = None
        self.log_problem = ""

    def log_stalls(self, why: str) -> None:
        """Notes why output is not taken now; empty once it is. A command that nobody hears is not silent."""
        self.log_problem = why
        if self.live is not None:
            if why:
                self.live.silence.pause()
            else:
                self.live.silence.begin()

    def starting(self) -> asyncio.Future[None]:
        """Done when its program is started, or its last record is written."""
        return _waiter(self._starters)

    async def cancel(self, reason: str) -> None:
        """End the process tree; what is not started yet will not be."""
        if self.cancel_reason is None:
            self.cancel_reason = reason
            if self.ledger is not None:
                await self.ledger.cancel(reason)
        if self.process is not None:
            await self.process.kill(reason)
        elif self.interrupt is not None:
            self.interrupt()

    def ending(self) -> asyncio.Future[None]:
        """Done when the last record is written, or the run is left to another server."""
        return _waiter(self._waiters)

    def wake(self) -> None:
        """Tell everybody who waits for the end."""
        _wake(self._waiters)
        _wake(self._starters)


def _waiter(waiters: list[asyncio.Future[None]]) -> asyncio.Future[None]:
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiters.append(waiter)
    return waiter


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()


class ActiveRuns(dict[str, ActiveRun]):
    """The runs at work by their ids."""

    def forget(self, active: ActiveRun) -> None:
        """The run's last record is written, or another server will write it."""
        self.pop(active.run_id, None)
        active.wake()


MOST_WAIT_MS = 60_000
"""Proxies commonly end a request that is silent for longer."""


class _Stopping(Busy):
    """The server takes no more calls."""


class Waiting:
    """Wakes calls that wait for a run when its record changes. ``polls`` bounds those of each principal."""

    def __init__(self, records: RecordStore, polls: Budget) -> None:
        self._records = records
        self._polls = polls
        self._turns: dict[str, set[asyncio.Future[None]]] = {}
        self._bounds: set[asyncio.Timeout] = set()
        self._closed = False

    async def poll(
        self, principal: str, run_id: str, wait_ms: int, look: Callable[[], Awaitable[T | None]]
    ) -> T | None:
        """Returns what ``look`` gives, as soon as that is not None; None when the time is over.

        It looks at once, and again after each change of the run. Raises Busy when this principal has too many polls.
        """
        found = await look()
        if found is None and wait_ms:
            async with self.bounded(principal, wait_ms / 1000):
                found = await self.until(run_id, look)
        return found

    async def until(self, run_id: str, look: Callable[[], Awaitable[T | None]]) -> T:
        """Returns what ``look`` gives, as :meth:`poll`, however long that takes. Raises Busy when the server stops."""
        while not self._closed:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            turns = self._turns.setdefault(run_id, set())
            turns.add(turn)
            self._records.listen(self._changed)
            try:
                found = await look()
                if found is not None:
                    return found
                await turn
            finally:
                turns.discard(turn)
                if not turns and self._turns.get(run_id) is turns:
                    del self._turns[run_id]
                if not self._turns:
                    self._records.ignore(self._changed)
        raise _Stopping("the server is shutting down", retry_after_ms=1000)

    @asynccontextmanager
    async def bounded(self, principal: str, seconds: float) -> AsyncIterator[None]:
        """Lets the block wait so long, and less when the server stops.

        It then ends without an error. Raises Busy when this principal has too many polls.
        """
        with self._polls.holding(principal), suppress(TimeoutError, _Stopping):
            async with asyncio.timeout(0 if self._closed else seconds) as bound:
                self._bounds.add(bound)
                try:
                    yield
                finally:
                    self._bounds.discard(bound)

    def close(self) -> None:
        """Ends all waiting, now and from here on."""
        self._closed = True
        now = asyncio.get_running_loop().time()
        for bound in self._bounds:
            bound.reschedule(now)
        for run_id in list(self._turns):
            self.wake(run_id)

    def _changed(self, record: RunRecord) -> None:
        self.wake(record.run_id)

    def wake(self, run_id: str) -> None:
        """Wakes the calls that wait for a run, or for a job by its id."""
        for turn in self._turns.pop(run_id, ()):
            if not turn.done():
                turn.set_result(None)


RETRY_MS = 10_000
LONGEST_MS = 30_000


def _ignore(_: bool) -> None:
    return


class Drain:
    """Whether the server takes new work. ``calls`` counts the calls at work that started some; the table keeps it."""

    def __init__(self, active: ActiveRuns, records: RecordStore) -> None:
        self.on = False
        self.calls = 0
        self.changed: Callable[[bool], None] = _ignore
        """Is told each change."""
        self._active = active
        self._records = records
        self.idle = asyncio.Event()
        """Is set when the last of these calls has ended."""

    def set(self, on: bool) -> None:
        """Refuses new work from now on, or takes it again."""
        if on != self.on:
            self.on = on
            self.changed(on)

    def refusal(self) -> Busy:
        return Busy("the server is draining and takes no new work; come again later", retry_after_ms=RETRY_MS)

    async def stays(self) -> Collection[str]:
        """Returns the ids of the runs that outlive the server."""
        return {record.run_id for record in await self._records.unfinished() if record.owner is Owner.TASK}

    async def attached(self, stays: Collection[str]) -> int:
        """Returns how many calls and runs end with the server."""
        return max(self.calls, len(self._active.keys() - set(stays)))

    async def wait(self, seconds: float) -> None:
        """Returns when nothing is left that ends with the server, or after so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.calls:
                    self.idle.clear()
                    await self.idle.wait()
                stays = await self.stays()
                endings = [run.ending() for run_id, run in self._active.items() if run_id not in stays]
                if endings:
                    await asyncio.wait(endings)


async def drain_server(drain: Drain, _: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    drain.set(not params["undo"])
    if drain.on and params["wait_ms"]:
        await drain.wait(params["wait_ms"] / 1000)
    stays = await drain.stays()
    return {"draining": drain.on, "attached": await drain.attached(stays), "detached": sorted(stays)}


TABLE: tuple[Method[Any], ...] = (
    Method(
        name="server.drain",
        doc="Refuse new work with Busy until the server is stopped; runs at work go on. Detached runs outlive it.",
        params=obj(
            {
                "undo": described(BOOLEAN, "take new work again", default=False),
                "wait_ms": described(
                    {**INTEGER, "minimum": 0, "maximum": LONGEST_MS},
                    "answer when nothing is left that ends with the server, or after so long",
                    default=0,
                ),
            }
        ),
        example={"undo": True},
        result=answer(
            {
                "draining": BOOLEAN,
                "attached": described(INTEGER, "calls and runs that end with the server"),
                "detached": described(STRINGS, "ids of the runs that outlive it"),
            }
        ),
        scope=Scope.ADMIN,
        repeatable=True,
        waits=True,
        handler=drain_server,
        service=Drain,
    ),
)
