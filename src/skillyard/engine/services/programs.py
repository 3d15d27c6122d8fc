"""The programs that a caller started in its sandbox, each under a number of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import field, replace
from typing import Any

from skillyard.domain.errors import InvalidInput, OutputDropped, QuotaExceeded, SandboxFault, SandboxGone, shown
from skillyard.domain.sandbox.frames import FrameFault, FrameReader, Result, ResultFault
from skillyard.domain.sandbox.spec import Argv, AtCap, Guest, GuestCall, Program, Stream, StreamLimits
from skillyard.domain.work.event import Event
from skillyard.domain.work.record import Ending, Outcome
from skillyard.engine.runs.active import ActiveRun
from skillyard.engine.tasks import Tasks
from skillyard.ports.clock import Ids
from skillyard.ports.sandbox import Forgetting, Process, Sandbox
from skillyard.values import dataclass

STREAMS = StreamLimits(log_bytes=16 * 1024 * 1024, channel_bytes=64 * 1024 * 1024, at_cap=AtCap.RING)
"""Each stream keeps its end: output that nobody reads stops no program."""
NUMBER = "SKILLYARD_PROGRAM"
"""The variable by which the processes of a program are found again inside."""
MOST = 2000
"""Programs of which a sandbox holds the output: those at work, and all ended ones where it cannot forget them."""
MOST_AT_ONCE = 512
_FIRST = 1000
_APART = 10_000
"""Numbers that a later server leaves out, since events of the last ones may be missing."""
_STARTED = "program"
_SHOWN = 2000
"""Characters of what is told of a program, above which an event has only the short words of it."""


@dataclass(slots=True, eq=False)
class Started:
    """A program under ``number``. ``told`` is what its caller said of it.

    ``read`` has for each stream the offset up to which somebody took it.
    """

    number: int
    id: str
    told: Mapping[str, Any]
    process: Process
    stdin: bool = False
    read: dict[Stream, int] = field(default_factory=dict)
    ending: Ending | None = None
    holders: int = 0
    """Callers that use it. It is forgotten when it has ended, and nobody does."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __enter__(self) -> Started:
        self.holders += 1
        self.idle.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self.holders -= 1
        if not self.holders:
            self.idle.set()

    async def output(self, stream: Stream) -> AsyncIterator[bytes]:
        """Yields a stream from where its last reader stopped, up to its end. Bytes that a ring lost are left out."""
        while True:
            try:
                async for data in self.process.output(stream, offset := self.read.get(stream, 0)):
                    offset += len(data)
                    self.read[stream] = max(offset, self.read.get(stream, 0))
                    yield data
                return
            except OutputDropped as dropped:
                self.read[stream] = max(dropped.first, self.read.get(stream, 0))

    async def value(self) -> dict[str, Any]:
        """Returns the value that a guest's code returned. It is hostile.

        Raises SandboxFault where there is none, SandboxGone.
        """
        reader = FrameReader()
        try:
            async for data in self.process.output(Stream.CHANNEL):
                reader.feed(data)
            final = reader.finish()
            if isinstance(final, Result):
                return final.value()
        except (FrameFault, ResultFault) as fault:
            raise SandboxFault(f"a program of the server in the sandbox gave no answer: {fault}") from None
        ending = await self.process.wait()
        if ending.outcome is Outcome.LOST:
            raise SandboxGone("the sandbox ended")
        raise SandboxFault(f"a program of the server in the sandbox gave no answer: {ending.outcome} {ending.reason}")


def python(code: str, args: Mapping[str, Any]) -> Guest:
    """Returns our own Python code as a program, which ``main`` is called of."""
    return Guest(GuestCall("blob:none-", entrypoint="main", code=code, args=args).request() | {"files": {}})


async def _killed(started: Started) -> None:
    with suppress(SandboxGone):
        await started.process.kill("nobody waits for it any more")


class Programs:
    """The programs of one sandbox. ``env`` is for all of them."""

    def __init__(self, active: ActiveRun, sandbox: Sandbox, env: Mapping[str, str], ids: Ids, tasks: Tasks) -> None:
        self._active = active
        self.sandbox = sandbox
        self.env = env
        self._ids = ids
        self._tasks = tasks
        self._numbers = itertools.count(_FIRST)
        self._held: dict[int, Started] = {}
        self._before: dict[int, Mapping[str, Any]] = {}
        self._count = 0
        self.notes: dict[str, Any] = {}
        """Facts about the sandbox that a face wants to know again."""

    def are_of(self, sandbox: Sandbox) -> bool:
        return self.sandbox is sandbox

    def remember(self, events: Iterable[Event]) -> None:
        """Learns of the programs that an earlier server started."""
        known: dict[int, Mapping[str, Any]] = {
            event.data["number"]: event.data for event in events if event.kind == _STARTED
        }
        if known and not self._held:
            self._before = known
            self._numbers = itertools.count(max(known) + _APART)
            self._count = len(known)

    async def start(
        self,
        program: Program,
        told: Mapping[str, Any] | None,
        *,
        timeout_ms: int | None = None,
        streams: StreamLimits = STREAMS,
    ) -> Started:
        """Starts a program with the variables of the sandbox, below its own. Its caller holds it from then on.

        One of which nothing is ``told`` is a help of the server's, and not listed.
        Raises QuotaExceeded, SandboxGone, SandboxFault, GateFault.
        """
        if self._count >= MOST:
            raise QuotaExceeded("process", f"one sandbox may start {MOST} programs", limit="programs", maximum=MOST)
        if len(self.running()) >= MOST_AT_ONCE:
            raise QuotaExceeded(
                "process", f"{MOST_AT_ONCE} programs are at work", limit="programs", maximum=MOST_AT_ONCE
            )
        number = next(self._numbers)
        id = f"{self._ids.run()}-{number}"
        ways = await self.ways()
        if isinstance(program, Argv):
            env = {**ways, **self.env, **program.env, NUMBER: str(number)}
            program = replace(program, env=env)
        self._count += 1
        process = await self.sandbox.start(program, id=id, timeout_ms=timeout_ms, streams=streams)
        stdin = isinstance(program, Argv) and program.reads
        started = Started(number, id, told or {}, process, stdin, holders=1)
        if told is not None:
            self._held[number] = started
            self._note(started)
        self._tasks.spawn(self._await_end(started), f"program {id}")
        return started

    async def ways(self) -> Mapping[str, str]:
        """Returns the variables by which programs find the way out. Raises GateFault, SandboxGone."""
        network = self._active.network
        return {} if network is None else await network.variables(self.sandbox)

    async def call(self, code: str, args: Mapping[str, Any], timeout_ms: int) -> dict[str, Any]:
        """Returns the value of our own Python code in the sandbox. It is hostile.

        Raises SandboxFault where there is none, SandboxGone, QuotaExceeded.
        """
        started = await self.start(python(code, args), None, timeout_ms=timeout_ms)
        try:
            return await started.value()
        except BaseException:
            await self._tasks.shielded(_killed(started), f"end of {started.id}")
            raise
        finally:
            started.__exit__()

    async def find(self, number: int) -> Started:
        """Returns a program that has not ended. Raises InvalidInput for one that is not known."""
        if (held := self._held.get(number)) is not None:
            return held
        before = self._before.pop(number, None)
        if before is None:
            raise InvalidInput("process", "is not one at work here", shown(number))
        try:
            process = await self.sandbox.process(before["id"])
        except SandboxGone:
            raise InvalidInput("process", "is not one at work here", shown(number)) from None
        held = self._held[number] = Started(number, before["id"], before["told"], process, bool(before["stdin"]))
        held.idle.set()
        self._tasks.spawn(self._await_end(held), f"program {held.id}")
        return held

    async def all(self) -> list[Started]:
        """Returns the programs at work, those of an earlier server too."""
        for number in list(self._before):
            try:
                await self.find(number)
            except InvalidInput:
                continue
        return self.running()

    def running(self) -> list[Started]:
        """Returns the programs at work that this server knows."""
        return [started for started in self._held.values() if started.ending is None]

    def close(self) -> None:
        """Forgets all programs of a sandbox that is gone."""
        self._held.clear()
        self._before.clear()

    async def _await_end(self, started: Started) -> None:
        started.ending = await started.process.wait()
        self._held.pop(started.number, None)
        await started.idle.wait()
        if isinstance(self.sandbox, Forgetting) and started.ending.outcome is not Outcome.LOST:
            with suppress(SandboxFault):  # of an older keeper: it stays known
                await self.sandbox.forget(started.id)
                self._count -= 1

    def _note(self, started: Started) -> None:
        """Writes down that it was started, for a later server and for who looks at the run."""
        ledger = self._active.ledger
        assert ledger is not None, "it is detached"
        told = {name: value for name, value in started.told.items() if name != "envs"}
        if len(str(told)) > _SHOWN:
            told = {name: value for name, value in told.items() if len(str(value)) < _SHOWN // 4}
        data = {"number": started.number, "id": started.id, "stdin": started.stdin, "told": told}
        self._tasks.spawn(ledger.tell(_STARTED, data), f"note of {started.id}")
