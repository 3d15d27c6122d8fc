"""Watches of directories: as a stream, and as watchers whose events a client fetches.

A program inside tells of the events; its words are hostile. It ends with the stream or with the watcher, and at the
latest with its time.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from skillyard.domain.errors import SandboxFault, SandboxGone, SkillyardError
from skillyard.domain.sandbox.spec import AtCap, Stream, StreamLimits
from skillyard.engine.services.programs import Programs, Started
from skillyard.faces.e2b import connect
from skillyard.faces.e2b.access import sandbox_id
from skillyard.faces.e2b.call import Call, flag_of, text_of
from skillyard.faces.e2b.daemon import Answer, Place, by_path
from skillyard.faces.e2b.errors import EXHAUSTED, NOT_FOUND, NotRunning, RpcRefusal
from skillyard.faces.e2b.filesystem import SERVICE, entry_of, of_answer, program, said_object
from skillyard.faces.e2b.process import MOST_TIMEOUT_MS
from skillyard.faces.http.lifecycle import Lifecycle

MOST_WATCHERS = 32
"""Watchers, and streams, of one sandbox."""
MOST_HELD = 10_000
"""Events of one watcher that nobody fetched; the oldest go first."""
_STREAMS = StreamLimits(log_bytes=4 * 1024 * 1024, channel_bytes=1 << 20, at_cap=AtCap.RING)
_MOST_LINE = 64 * 1024
_TYPES = tuple(f"EVENT_TYPE_{word}" for word in ("CREATE", "WRITE", "REMOVE", "RENAME", "CHMOD"))
_SILENT: connect.Message = {"keepalive": {}}
_WATCHERS = "watchers"


@dataclass(slots=True, eq=False)
class Watcher:
    """A watch, with the events that nobody fetched yet."""

    started: Started
    place: Place
    asked: str
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MOST_HELD))
    error: SkillyardError | None = None
    reading: asyncio.Task[None] | None = None

    async def told(self) -> AsyncIterator[dict[str, Any]]:
        """Yields the events as they come. Raises RpcRefusal, SandboxFault, NotRunning."""
        rest = b""
        try:
            async for data in self.started.output(Stream.STDOUT):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if (event := self._event(line)) is not None:
                        yield event
                if len(rest) > _MOST_LINE:
                    raise SandboxFault("the program that watches said too much in one line")
            of_answer(await self.started.value())
        except SandboxGone:
            raise NotRunning(sandbox_id(self.place.record)) from None

    def _event(self, line: bytes) -> dict[str, Any] | None:
        said = said_object(line)
        if said is None or "error" in said or "ok" in said:
            of_answer(said or {})
            return None
        name, kind = said.get("name"), said.get("type")
        if not isinstance(name, str) or kind not in _TYPES:
            raise SandboxFault("the program that watches told no event")
        told = {"name": name, "type": kind}
        return told | ({"entry": entry_of(said["entry"], self.asked)} if "entry" in said else {})

    async def collect(self, begun: asyncio.Event) -> None:
        """Keeps events until the watch ends."""
        try:
            async for event in self.told():
                self.events.append(event)
        except SkillyardError as error:
            self.error = error
        finally:
            begun.set()

    async def end(self) -> None:
        """Ends the program inside."""
        if self.reading is not None:
            self.reading.cancel()
        try:
            with suppress(SkillyardError):
                await self.started.process.kill("nobody watches any more")
        finally:
            self.started.__exit__()


class Watches:
    """Answers the calls about watches."""

    def __init__(self, life: Lifecycle, spawn: Callable[..., asyncio.Task[Any]]) -> None:
        self._life = life
        self._spawn = spawn

    def calls(self) -> dict[str, Answer]:
        """Returns the calls by their paths."""
        return by_path(
            SERVICE,
            WatchDir=self.stream,
            CreateWatcher=self.create,
            GetWatcherEvents=self.fetch,
            RemoveWatcher=self.remove,
        )

    async def stream(self, call: Call, place: Place) -> None:
        message = await connect.only(call, place.owner)
        timeout = connect.timeout_ms(call)
        with call.staying(place.owner):
            await connect.stream(call, self._life, _streamed(place, message, timeout), _SILENT)

    async def create(self, call: Call, place: Place) -> None:
        message = await connect.unary(call, place.owner)
        watcher = await _watch(place, message, None)
        held, id = _of(place.programs), secrets.token_hex(16)
        held[id] = watcher
        begun = asyncio.Event()
        watcher.reading = self._spawn(watcher.collect(begun), f"watch {watcher.started.id}")
        await connect.answer(call, {"watcherId": id})

    async def fetch(self, call: Call, place: Place) -> None:
        message = await connect.unary(call, place.owner)
        watcher = _of(place.programs).get(text_of(message, "watcherId"))
        if watcher is None:
            raise RpcRefusal(NOT_FOUND, "watcher not found")
        if watcher.error is not None and not watcher.events:
            raise watcher.error
        events = list(watcher.events)
        watcher.events.clear()
        await connect.answer(call, {"events": events})

    async def remove(self, call: Call, place: Place) -> None:
        message = await connect.unary(call, place.owner)
        watcher = _of(place.programs).pop(text_of(message, "watcherId"), None)
        if watcher is None:
            raise RpcRefusal(NOT_FOUND, "watcher not found")
        await watcher.end()
        await connect.answer(call, {})


def _of(programs: Programs) -> dict[str, Watcher]:
    found: dict[str, Watcher] = programs.notes.setdefault(_WATCHERS, {})
    return found


async def _watch(place: Place, message: connect.Message, timeout_ms: int | None) -> Watcher:
    """Returns a watch that has begun. Raises RpcRefusal, NotRunning."""
    path = place.path(text_of(message, "path"))
    recursive, with_entry = flag_of(message, "recursive"), flag_of(message, "includeEntry")
    flag_of(message, "allowNetworkMounts")  # a sandbox has none
    if len(_of(place.programs)) >= MOST_WATCHERS:
        raise RpcRefusal(EXHAUSTED, f"a sandbox may have {MOST_WATCHERS} watchers")
    asked = program("watch", place.inside(path), recursive=recursive, with_entry=with_entry)
    try:
        started = await place.programs.start(asked, None, timeout_ms=timeout_ms or MOST_TIMEOUT_MS, streams=_STREAMS)
    except SandboxGone:
        raise NotRunning(sandbox_id(place.record)) from None
    watcher = Watcher(started, place, path)
    try:
        await _begun(watcher)
    except BaseException:
        await watcher.end()
        raise
    return watcher


async def _begun(watcher: Watcher) -> None:
    """Returns when the program inside watches. Raises RpcRefusal where it cannot, NotRunning."""
    said = b""
    async for data in watcher.started.output(Stream.STDOUT):
        said += data
        line, end, rest = said.partition(b"\n")
        if end:
            watcher.started.read[Stream.STDOUT] -= len(rest)
            of_answer(said_object(line) or {})
            return
    of_answer(await watcher.started.value())
    raise SandboxFault("the program that watches did not begin")


async def _streamed(place: Place, message: connect.Message, timeout_ms: int | None) -> AsyncIterator[connect.Message]:
    watcher = await _watch(place, message, timeout_ms)
    held, id = _of(place.programs), secrets.token_hex(16)
    held[id] = watcher
    try:
        yield {"start": {}}
        async for event in watcher.told():
            yield {"filesystem": event}
    finally:
        held.pop(id, None)
        await watcher.end()
