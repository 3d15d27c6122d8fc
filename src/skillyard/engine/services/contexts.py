"""Contexts of code in a sandbox, which keep names and show values as notebooks do."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from skillyard.domain.errors import InvalidInput, QuotaExceeded, SandboxFault, SandboxGone, SkillyardError, shown
from skillyard.domain.sandbox.frames import ErrorText, Failure, FrameFault, FrameLimits, FrameReader, Shown
from skillyard.domain.sandbox.spec import (
    AtCap,
    Guest,
    GuestCall,
    Stream,
    StreamLimits,
    cell_request,
    interpreter_request,
)
from skillyard.domain.work.record import Ending, Outcome
from skillyard.engine.services.programs import Programs
from skillyard.ports.clock import Ids
from skillyard.ports.sandbox import Forgetting, Process

DEFAULT = "default"
MOST = 32
"""Contexts of one sandbox, each of which is a process."""
SHOWS = 1000
"""Values that one cell may show."""
MOST_MS = 24 * 3600 * 1000
_LIMITS = FrameLimits(blobs=0, files=0, result_bytes=8 * 1024 * 1024, shows=SHOWS)
_CALL = GuestCall("blob:none-", code="", limits=_LIMITS).request()
_STREAMS = StreamLimits(16 * 1024 * 1024, 64 * 1024 * 1024, at_cap=AtCap.RING)
_KEPT = StreamLimits(64 * 1024, 64 * 1024, at_cap=AtCap.RING)
_AHEAD = 4
_LATE = ("TimeoutError", "the cell took longer than its time limit, and was interrupted")


@dataclass(frozen=True, slots=True)
class Output:
    """Text that a cell wrote to ``stream``."""

    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class Count:
    """The number of cells that the context has begun, with this one."""

    number: int


Event = Output | Shown | Failure | Count


@dataclass(slots=True, eq=False)
class Context:
    """An interpreter. ``env`` has the variables of all of its cells; cells wait for each other in ``turn``."""

    id: str
    cwd: str
    directory: str
    """The working directory as processes inside see it."""
    env: Mapping[str, str]
    process: Process | None = None
    count: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def name(self) -> str:
        return f"context-{self.id}"


class Contexts:
    """The contexts of one sandbox. One is made when it is first used; all end with the sandbox."""

    def __init__(self, programs: Programs, ids: Ids) -> None:
        self._programs = programs
        self._ids = ids
        self._known: dict[str, Context] = {}

    def all(self) -> list[Context]:
        return list(self._known.values())

    def get(self, id: str) -> Context:
        """Raises InvalidInput for one that is not there."""
        if id not in self._known:
            raise InvalidInput("context_id", "is not the id of a context of this sandbox", shown(id))
        return self._known[id]

    def make(self, cwd: str, directory: str, env: Mapping[str, str], id: str = "") -> Context:
        """Returns a new context. Raises QuotaExceeded."""
        if len(self._known) >= MOST:
            raise QuotaExceeded("contexts", f"a sandbox has at most {MOST}", limit="contexts", maximum=MOST)
        made = Context(id or self._ids.run().rpartition("_")[2], cwd, directory, env)
        return self._known.setdefault(made.id, made)

    async def remove(self, id: str) -> None:
        """Ends a context. Raises InvalidInput, SandboxGone."""
        context = self.get(id)
        del self._known[id]
        await _end(context)

    async def restart(self, id: str) -> None:
        """Ends the interpreter of a context, which begins anew with its next cell. Raises InvalidInput, SandboxGone."""
        context = self.get(id)
        await _end(context)
        context.count = 0

    async def run(
        self, context: Context, code: str, env: Mapping[str, str], timeout_ms: int = MOST_MS
    ) -> AsyncIterator[Event]:
        """Yields the events of a cell as they come. When it is closed before, the cell is interrupted.

        Raises SandboxGone, SandboxFault.
        """
        async with context.turn:
            if context.process is None:
                context.process = await self._start(context)
            context.count += 1
            request = {**_CALL, "code": code, "env": dict(env), "shows": SHOWS}
            cell = Guest(cell_request(request, context.name))
            process = await self._programs.sandbox.start(
                cell, id=self._ids.run(), timeout_ms=timeout_ms, streams=_STREAMS
            )
            try:
                async for event in _events(process):
                    yield event
                ending = await process.wait()
            finally:
                await process.kill("nobody waits for the cell any more")
                await self._forget(process)
            for failure in _failures(context, ending):
                yield failure
            yield Count(context.count)

    async def _forget(self, process: Process) -> None:
        with suppress(SandboxFault):
            await process.wait()
            if isinstance(self._programs.sandbox, Forgetting):
                await self._programs.sandbox.forget(process.id)

    async def _start(self, context: Context) -> Process:
        network = await self._programs.ways()
        env = {**network, **self._programs.env, **context.env, "PWD": context.directory}
        request = interpreter_request(_CALL, context.name) | {"env": env, "cwd": context.directory, "shows": SHOWS}
        return await self._programs.sandbox.start(Guest(request), id=self._ids.run(), timeout_ms=MOST_MS, streams=_KEPT)


async def _end(context: Context) -> None:
    process, context.process = context.process, None
    if process is not None:
        with suppress(SandboxGone):
            await process.kill("its context was ended")
            await process.wait()


def _failures(context: Context, ending: Ending) -> list[Failure]:
    """Returns what the end of a cell tells that its frames do not. Raises SandboxGone."""
    if ending.outcome is Outcome.LOST:
        raise SandboxGone("the sandbox ended")
    if ending.outcome is Outcome.TIMEOUT:
        return [Failure(*_LATE)]
    if ending.outcome is not Outcome.EXIT or ending.code:
        context.process = None  # the interpreter has ended, which a frame said already where one could
    return []


async def _events(process: Process) -> AsyncIterator[Event]:
    """Yields what a cell writes, each kind in its order. Raises SandboxFault for frames that break the protocol."""
    queue: asyncio.Queue[Event | SkillyardError | None] = asyncio.Queue(_AHEAD)
    pumps = [asyncio.ensure_future(pump(process, queue)) for pump in (_texts, _frames)]
    try:
        for _ in pumps:
            while (event := await queue.get()) is not None:
                if isinstance(event, SkillyardError):
                    raise event
                yield event
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _texts(process: Process, queue: asyncio.Queue[Event | SkillyardError | None]) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        async for data in process.output(Stream.STDOUT):
            if text := decoder.decode(data):
                await queue.put(Output("stdout", text))
    except SkillyardError as error:
        await queue.put(error)
    await queue.put(None)


async def _frames(process: Process, queue: asyncio.Queue[Event | SkillyardError | None]) -> None:
    reader, decoder = FrameReader(_LIMITS), codecs.getincrementaldecoder("utf-8")("replace")
    try:
        async for data in process.output(Stream.CHANNEL):
            for frame in reader.feed(data):
                if isinstance(frame, ErrorText):
                    if text := decoder.decode(frame.data):
                        await queue.put(Output("stderr", text))
                elif isinstance(frame, Shown | Failure):
                    await queue.put(frame)
        reader.finish()
    except FrameFault as fault:
        await queue.put(SandboxFault(f"the cell breaks the protocol: {fault}"))
    except SkillyardError as error:
        await queue.put(error)
    await queue.put(None)
