"""A native sandbox, as the server sees it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from skillyard.domain.errors import (
    GateFault,
    InvalidInput,
    OutputDropped,
    SandboxCutOff,
    SandboxFault,
    SandboxGone,
    shown,
)
from skillyard.domain.network.session import DNS_PORT, PROXY_PORT, Egress
from skillyard.domain.sandbox.spec import (
    DEFAULT_STREAMS,
    Argv,
    AtCap,
    Guest,
    Program,
    Start,
    Stream,
    StreamLimits,
    Terminal,
)
from skillyard.domain.work.record import Ending, Outcome, Usage
from skillyard.ipc.channel import close_all
from skillyard.ipc.packets import to_json
from skillyard.ports.gate import Plug
from skillyard.sandbox.file_programs import LIFETIME_MS, FilesOfSandbox
from skillyard.sandbox.file_programs import STREAMS as FILE_STREAMS
from skillyard.sandbox.native.forwarding import SocketStream, dial
from skillyard.sandbox.native.inside.walls import CODE_ROOT
from skillyard.sandbox.native.link import Following, Link, gone

_PIECE = 1 << 18
_PATIENCE_S, _GUEST_PATIENCE_S = 0.06, 0.25
"""How long the output of a program without input waits for its end, which brings all of it in one message.

A following costs a run of a few milliseconds three messages more, most of all on a busy host. A guest's output is read
by the engine, so that it waits for longer.
"""

LOST = Ending(Outcome.LOST, reason="the sandbox is gone: its keeper ended")
CUT_OFF = replace(LOST, cut_off=True)


class NativeProcess:
    def __init__(self, link: Link, handle: str, id: str, patience_s: float = 0.0) -> None:
        """Output that is asked for within ``patience_s`` waits so long for the end."""
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._handle = handle
        self._id = id
        self._ending: Ending | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        """Waiters of their own, so that nothing stands between the end and a reader that may be cancelled."""
        self._patient_until = self._loop.time() + patience_s
        self._followings: list[tuple[Stream, Following]] = []
        self._inline: dict[str, bytes] = {}
        self._sizes: dict[str, int] = {}
        self._firsts: dict[str, int] = {}
        self._killed = ""

    @property
    def id(self) -> str:
        return self._id

    @property
    def is_over(self) -> bool:
        return self._ending is not None

    def output(self, stream: Stream, offset: int = 0) -> AsyncIterator[bytes]:
        first = self._firsts.get(stream, 0)
        if self._ending is not None and stream in self._inline and offset >= first:
            return _AtHand(self._inline[stream][offset - first :])
        return self._pushed(stream, offset)

    async def _pushed(self, stream: Stream, offset: int) -> AsyncIterator[bytes]:
        if self._ending is None and (patience := self._patient_until - self._loop.time()) > 0:
            await self._until_ended(patience)
        if stream not in self._inline and offset < self._sizes.get(stream, offset + 1):
            following = self._link.follow({**self._about("follow"), "stream": stream.value, "offset": offset})
            self._followings.append((stream, following))
            try:
                while data := await following.next():
                    offset += len(data)
                    yield data
                    following.took(offset)
            finally:
                following.close()
                self._followings.remove((stream, following))
            self._judge(following.end or {}, stream)
        first = self._firsts.get(stream, 0)
        if stream in self._inline and offset < first:
            raise OutputDropped(first)
        if rest := self._inline.get(stream, b"")[offset - first :]:
            yield rest

    def _judge(self, end: dict[str, Any], stream: Stream) -> None:
        """Raises when a stream was cut off: OutputDropped, SandboxFault, SandboxGone."""
        if "dropped" in end:
            raise OutputDropped(end["dropped"])
        if "error" in end:
            raise SandboxFault(end["error"])
        ended = self._ending not in (None, LOST, CUT_OFF)
        if "gone" in end and ended and stream not in self._inline:
            raise gone(end)  # it ended in order, and what it said last is not to be had

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            await self._link.answer(self._about("send"), bytes(view[:_PIECE]))
            view = view[_PIECE:]

    async def close_stdin(self) -> None:
        await self._link.answer(self._about("close_stdin"))

    async def resize(self, size: Terminal) -> None:
        told, _ = await self._link.answer({**self._about("resize"), "rows": size.rows, "columns": size.columns})
        if not told["resized"]:
            raise InvalidInput("terminal", "the program has none; start it on one")

    async def wait(self) -> Ending:
        await self._until_ended()
        assert self._ending is not None, "it was waited for"
        return self._ending

    async def _until_ended(self, seconds: float | None = None) -> None:
        """Returns when it has ended, or after so many seconds."""
        if self._ending is not None:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(waiter)
        timer = None if seconds is None else self._loop.call_later(seconds, _wake, waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)
            if timer is not None:
                timer.cancel()

    async def kill(self, reason: str = "") -> None:
        if self._ending is None:
            try:
                await self._link.answer({**self._about("kill"), "reason": reason or "killed"})
            except SandboxGone:
                return

    def ended(self, header: dict[str, Any], body: bytes) -> Ending | None:
        """Takes the keeper's announcement; returns the ending when it is new.

        Output that is small comes with it.
        """
        if self._ending is not None:
            return None
        if "ending" not in header:
            self.lost()
            return None
        at = 0
        for name, size in header["inline"].items():
            self._inline[name] = body[at : at + size]
            at += size
        for stream, following in self._followings:
            if stream in self._inline:
                following.push(b"", {"end": True})
        self._sizes, self._firsts = header["sizes"], header["firsts"]
        ending = _ending(header["ending"], parting=header.get("parting", False))
        self._end(ending)
        return ending

    def lost(self, *, cut_off: bool = False) -> None:
        if self._ending is None:
            self._end(CUT_OFF if cut_off else LOST)
        for _, following in self._followings:
            following.push(b"", {"gone": "the sandbox is gone"})

    def _end(self, ending: Ending) -> None:
        self._ending = ending
        for waiter in self._waiting:
            _wake(waiter)

    def _about(self, operation: str) -> dict[str, Any]:
        return {"op": operation, "handle": self._handle, "id": self._id}


class _AtHand:
    """Output that came with the end. A generator would cost a short run more than the rest of its output."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __aiter__(self) -> _AtHand:
        return self

    async def __anext__(self) -> bytes:
        data, self._data = self._data, b""
        if not data:
            raise StopAsyncIteration
        return data


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _ending(told: dict[str, Any], *, parting: bool) -> Ending:
    return Ending(
        Outcome(told["outcome"]),
        told.get("code"),
        told.get("signal"),
        told.get("reason", ""),
        Usage(**told["usage"], whole=True),
        frozenset(told.get("hits", ())),
        parting=parting,
    )


_FILES_CODE = (
    f"import sys; sys.path.insert(0, {CODE_ROOT!r}); from skillyard.guest.files.serving import main; sys.exit(main())"
)
FILES = ("python3", "-I", "-S", "-c", _FILES_CODE)


class NativeSandbox(FilesOfSandbox):
    def __init__(self, link: Link, handle: str, enforced: dict[str, str]) -> None:
        self._link = link
        self.handle = handle
        self.enforced = enforced
        self.made = ""
        self.told_late_s = 0.0
        """How long it was lent when its keeper told of it together with the end of its first program."""
        self._over: type[SandboxGone] | None = None
        self._streams: WeakSet[SocketStream] | None = None
        self.processes: dict[str, NativeProcess] = {}

    async def start(
        self, program: Program, *, id: str, timeout_ms: int | None = None, streams: StreamLimits = DEFAULT_STREAMS
    ) -> NativeProcess:
        return await self._start(program, id, timeout_ms, streams)

    async def _start(
        self, program: Program, id: str, timeout_ms: int | None, streams: StreamLimits, *, tied: bool = False
    ) -> NativeProcess:
        """Starts a program; a ``tied`` one ends with this server."""
        if id in self.processes:
            return self.processes[id]
        if self._over:
            raise self._over("the sandbox is gone")
        header, body = self.message(program)
        header.update(_start(id, timeout_ms, streams, tied=tied), op="start", handle=self.handle)
        if isinstance(program, Guest) and (program.kept or program.alone):
            header.update(op="keep" if program.kept else "start", alone=program.alone)
        elif isinstance(program, Argv) and program.terminal is not None:
            header.update(op="terminal", terminal=[program.terminal.rows, program.terminal.columns])
        patience_s = _GUEST_PATIENCE_S if isinstance(program, Guest) else 0.0 if program.reads else _PATIENCE_S
        process = self.processes[id] = NativeProcess(self._link, self.handle, id, patience_s)
        if isinstance(program, Guest) and not program.kept:
            self._link.tell(header, body)  # unanswered: the end is announced, also of one that was not started
        else:
            try:
                await self._link.answer(header, body)
            except BaseException:
                del self.processes[id]
                raise
        return process

    def launched(self, first: Start) -> None:
        """Learns that the keeper started a guest with the sandbox."""
        if first.id not in self.processes:
            self.processes[first.id] = NativeProcess(self._link, self.handle, first.id, _GUEST_PATIENCE_S)

    async def process(self, id: str) -> NativeProcess:
        known = self.processes.get(id)
        if known is not None:
            return known
        process = self.processes[id] = NativeProcess(self._link, self.handle, id)
        try:
            await self._link.answer({"op": "wait", "handle": self.handle, "id": id})
        except BaseException:
            del self.processes[id]
            raise
        return process

    async def forget(self, id: str) -> None:
        await self._link.answer({"op": "forget", "handle": self.handle, "id": id})
        self.processes.pop(id, None)

    async def start_files(self) -> NativeProcess:
        id = f".files-{os.urandom(8).hex()}"  # another server may have started one before
        program = Argv(self.files_program(), stdin=True)
        return await self._start(program, id, LIFETIME_MS, FILE_STREAMS, tied=True)

    def is_of(self, link: Link) -> bool:
        """Returns whether it is reached through ``link``."""
        return self._link is link

    def message(self, program: Program) -> tuple[dict[str, Any], bytes]:
        """Returns a program's message to the keeper: a header and a guest's request."""
        return _message(program)

    def files_program(self) -> tuple[str, ...]:
        return FILES

    async def forward(self, port: int) -> SocketStream:
        stream = await dial(self._link, self.handle, port)
        if self._over:
            stream.abort()
            raise self._over("the sandbox is gone")
        if self._streams is None:
            self._streams = WeakSet()
        self._streams.add(stream)
        return stream

    def lost(self, *, cut_off: bool = False) -> None:
        """Ends every wait: nothing of the sandbox is left, or the connection to it is over."""
        self._over = SandboxCutOff if cut_off else SandboxGone
        if self._files is not None:
            self._files.lost()
        for stream in self._streams or ():
            stream.abort()
        for process in self.processes.values():
            process.lost(cut_off=cut_off)


def launch_message(first: Start) -> tuple[dict[str, Any], bytes]:
    """Returns the start of a guest for the message by which its sandbox is created."""
    header, body = _message(first.program)
    return {**header, **_start(first.id, first.timeout_ms, first.streams, tied=False)}, body


def _start(id: str, timeout_ms: int | None, streams: StreamLimits, *, tied: bool) -> dict[str, Any]:
    return {
        "id": id,
        "timeout_ms": timeout_ms,
        "log_bytes": streams.log_bytes,
        "stderr_bytes": streams.stderr_bytes,
        "channel_bytes": streams.channel_bytes,
        "ring": streams.at_cap is AtCap.RING,
        "wait": streams.at_cap is AtCap.WAIT,
        "tied": tied,
    }


def _message(program: Program) -> tuple[dict[str, Any], bytes]:
    if isinstance(program, Guest):
        return {"argv": None}, to_json(program.request).encode("utf-8", "surrogatepass")
    env = dict(program.variables)
    return {"argv": list(program.args), "env": env, "cwd": program.cwd, "stdin": program.reads}, b""


_OLD_GATE_S = 2.0
"""How long a gate that served this sandbox before may take to end."""
_LOOK_AGAIN_S = 0.02


def listen(egress: Egress) -> dict[str, Any]:
    """Returns the ports that the keeper is asked to open for a session."""
    return {"streams": sorted({*egress.ports, DNS_PORT, PROXY_PORT}), "datagrams": [DNS_PORT]}


class PluggedSandbox(NativeSandbox):
    proxy_port = PROXY_PORT

    def __init__(self, link: Link, handle: str, enforced: dict[str, str], plug: Plug) -> None:
        super().__init__(link, handle, enforced)
        self._plug = plug
        self._plugging = asyncio.Lock()
        self._gates: set[int] = set()
        """Ports that are for the gate."""
        self._given_up: set[int] = set()
        """Those of them that programs of the sandbox took before."""

    async def forward(self, port: int) -> SocketStream:
        if port in self._gates - self._given_up:
            raise InvalidInput("port", "is the gate's own, and no program of the sandbox listens there", shown(port))
        return await super().forward(port)

    async def plug(self, egress: Egress) -> None:
        """Listen on what ``egress`` names and hand it to the gate. Ports that are taken already stay as they are: the
        gate has them, or a program of the sandbox took them before. Raises SandboxGone, GateFault."""
        async with self._plugging:
            wanted = listen(egress)["streams"]
            self._gates.update(self._plug.served(egress.session))
            if not self._known(egress).issuperset(wanted):
                await self._hand_over(egress, await self._open(egress))

    async def plug_first(self, egress: Egress, sockets: Sequence[socket.socket]) -> None:
        """Hands over the sockets that the keeper opened when it lent the sandbox.

        A second caller for the same sandbox got no sockets, and waits here until the gate has them. Raises SandboxGone,
        GateFault.
        """
        async with self._plugging:
            if sockets:
                await self._hand_over(egress, sockets)
            elif not self._plug.served(egress.session):
                await self._hand_over(egress, await self._open(egress))

    async def _hand_over(self, egress: Egress, sockets: Sequence[socket.socket]) -> None:
        try:
            await self._plug.plug(egress.session, sockets)
        finally:
            close_all(sockets)
        self._gates.update(listen(egress)["streams"])

    async def _open(self, egress: Egress) -> list[socket.socket]:
        """Opens the ports, and waits a moment for those that an earlier gate still holds.

        The gate of an earlier server, unknown to this one, may be about to end: its ports come free then.
        """
        clock = asyncio.get_running_loop().time
        asked = listen(egress)
        until = clock() + _OLD_GATE_S
        sockets: list[socket.socket] = []
        try:
            while True:
                answer, _ = await self._link.answer({"op": "plug", "handle": self.handle, "listen": asked})
                sockets += answer.get("sockets", ())
                taken = self._strange(egress, answer["taken"], sockets)
                if not taken or clock() > until:
                    break
                await asyncio.sleep(_LOOK_AGAIN_S)
            if DNS_PORT in taken:
                raise GateFault("another gate listens in this sandbox")
        except BaseException:
            close_all(sockets)
            raise
        self._given_up |= taken
        return sockets

    def _known(self, egress: Egress) -> set[int]:
        return self._given_up.union(self._plug.served(egress.session))

    def _strange(self, egress: Egress, taken: Iterable[int], opened: Sequence[socket.socket]) -> set[int]:
        ours = {sock.getsockname()[1] for sock in opened}
        return set(taken) - self._known(egress) - ours
