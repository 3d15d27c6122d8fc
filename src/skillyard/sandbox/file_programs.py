"""Files of a sandbox through a program inside it: for every backend that can start programs.

The program is :mod:`skillyard.guest.files`. It serves many requests, is started with the first one, and ends when no
request came for a while. Its words are hostile: foreign code may have taken it over.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from skillyard.domain.archive.names import ArchiveRefused
from skillyard.domain.archive.tar_stream import TarEntry, TarStream
from skillyard.domain.errors import (
    FileNotFound,
    InvalidInput,
    QuotaExceeded,
    SandboxFault,
    SandboxGone,
    SkillyardError,
)
from skillyard.domain.sandbox.spec import AtCap, Entry, Stream, StreamLimits
from skillyard.domain.work.record import Outcome
from skillyard.guest.files import DAMAGED, MAX_ENTRIES, MISSING, NO_SPACE, NOT_REGULAR, PIECE, REFUSED, WINDOW
from skillyard.ports.sandbox import Forgetting, Process

Forget = Callable[[str], Awaitable[None]]
StartFiles = Callable[[], Awaitable[Process]]
"""Starts the files program with its standard input open, and with :data:`STREAMS`."""

STREAMS = StreamLimits(log_bytes=4 * WINDOW, at_cap=AtCap.RING)
"""The program sends at most a window ahead of its reader."""
LIFETIME_MS = 24 * 3600 * 1000
"""The deadline of a files program, whose requests have bounds of their own."""
IDLE_S = 1.0
"""How long a program waits for the next request: it counts as one of the sandbox's processes."""
STALLED_S = 300.0
"""How long a request may go on without a byte."""
_MOST_NAME = 64 * 1024
_MOST_LISTING = 16 * 1024 * 1024
_MOST_WORDS = 64 * 1024
_MOST_SIZE = 1 << 63
_KINDS = frozenset({"file", "directory", "link", "other"})


class Files:
    """The file operations of the port, over programs that ``start`` starts."""

    def __init__(self, start: StartFiles, forget: Forget | None = None) -> None:
        """``forget`` lets go of a program that has ended."""
        self._start = start
        self._forget = forget
        self._idle: _Server | None = None
        self._leaving: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Yields a file as the port's ``read`` does. The first chunk may come before a late failure is known."""
        async for piece in self._given({"op": "read", "path": path, "offset": offset, "length": length}):
            yield piece

    async def write(self, path: str, chunks: AsyncIterator[bytes], *, mode: int = 0o644) -> int:
        """Writes a file as the port's ``write`` does: it appears whole or not at all."""
        told = await self._taken({"op": "write", "path": path, "mode": mode}, chunks)
        match told:
            case {"size": int(size)} if 0 <= size < _MOST_SIZE:
                return size
        raise SandboxFault("the sandbox did not say how much it wrote")

    async def entries(self, path: str) -> Sequence[Entry]:
        """Lists a directory as the port's ``entries`` does."""
        listing = bytearray()
        async for piece in self._given({"op": "entries", "path": path}):
            listing += piece
            if len(listing) > _MOST_LISTING:
                raise SandboxFault(f"the listing of {path!r} is over {_MOST_LISTING} bytes")
        lines = bytes(listing).splitlines()
        if len(lines) > MAX_ENTRIES:
            raise SandboxFault(f"the listing of {path!r} has more than {MAX_ENTRIES} names")
        return [_entry(_object(line)) for line in lines]

    async def stat(self, path: str) -> Entry:
        """Describes a name as the port's ``stat`` does."""
        return _entry(await self._told({"op": "stat", "path": path}))

    async def remove(self, path: str) -> None:
        """Removes a file or a tree as the port's ``remove`` does."""
        await self._told({"op": "remove", "path": path})

    async def put(self, path: str, chunks: AsyncIterator[bytes]) -> None:
        """Unpacks a tar stream as the port's ``put`` does."""
        await self._taken({"op": "put", "path": path}, chunks)

    async def get(self, path: str) -> AsyncIterator[bytes]:
        """Yields a tar stream as the port's ``get`` does."""
        async for piece in checked(self._given({"op": "get", "path": path})):
            yield piece

    async def end(self) -> None:
        """Ends the program that waits for a request, if one does."""
        server, self._idle = self._idle, None
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if self._tasks:
            await asyncio.wait(self._tasks)
        if server is not None:
            await server.end()

    def lost(self) -> None:
        """Forgets the programs of a sandbox that is gone."""
        self._idle = None
        if self._leaving is not None:
            self._leaving.cancel()

    async def _told(self, request: dict[str, Any]) -> Any:
        server = await self._server()
        try:
            await server.ask(request)
            told = await server.answer(request["path"])
        except _Refused as refused:
            self._done(server)
            raise refused.error from None
        except BaseException:
            await server.end()
            raise
        self._done(server)
        return told

    async def _given(self, request: dict[str, Any]) -> AsyncIterator[bytes]:
        server = await self._server()
        try:
            await server.ask(request)
            async for piece in server.pieces(request["path"]):
                yield piece
        except _Refused as refused:
            self._done(server)
            raise refused.error from None
        except BaseException:
            await server.end()
            raise
        self._done(server)

    async def _taken(self, request: dict[str, Any], chunks: AsyncIterator[bytes]) -> Any:
        server = await self._server()
        try:
            await server.ask(request, chunks)
            told = await server.answer(request["path"])
        except _Refused as refused:
            self._done(server)
            raise refused.error from None
        except BaseException:
            if server.waits:
                self._done(server)
            else:
                await server.end()
            raise
        self._done(server)
        return told

    async def _server(self) -> _Server:
        """Returns the program that waits, or a new one: requests at the same time have each its own."""
        server, self._idle = self._idle, None
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if server is not None and server.alive:
            return server
        return _Server(await self._start(), self._forget)

    def _done(self, server: _Server) -> None:
        if self._idle is not None:
            self._end(server)
            return
        self._idle = server
        self._leaving = asyncio.get_running_loop().call_later(IDLE_S, self._leave)

    def _leave(self) -> None:
        server, self._idle, self._leaving = self._idle, None, None
        if server is not None:
            self._end(server)

    def _end(self, server: _Server) -> None:
        task = asyncio.get_running_loop().create_task(server.end(orderly=True))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def checked(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields a tar stream of a sandbox while it is what the port's ``get`` promises.

    Its reader can rely on the form, and on kinds and names: files, directories and symbolic links below one root.
    Raises SandboxFault.
    """
    tar = TarStream(_Promised(), links=True)
    try:
        async for piece in stream:
            tar.feed(piece)
            yield piece
        tar.finish()
    except ArchiveRefused as refused:
        raise SandboxFault(f"the sandbox gave a tree in no form that we know: {refused}") from None


class _Promised:
    """A sink that holds the names of a stream to the port's promise, and keeps nothing."""

    def header(self) -> None:
        """Takes any number of headers."""

    def begin(self, entry: TarEntry) -> None:
        parts = entry.name.split(b"/")
        if not entry.name or len(entry.name) > _MOST_NAME or b"\0" in entry.name:
            raise ArchiveRefused("archive-name", entry.name, "has no name, or one that no file can have")
        if entry.name.startswith(b"/") or b".." in parts:
            raise ArchiveRefused("archive-traversal", entry.name, "lies outside of its tree")

    def write(self, data: memoryview) -> None:
        """Takes content of any kind."""

    def end(self) -> None:
        """Takes the end of an entry."""


class _Refused(Exception):
    """The program refused a request, and can serve another."""

    def __init__(self, error: SkillyardError) -> None:
        self.error = error


class _Server:
    """One files program."""

    def __init__(self, process: Process, forget: Forget | None) -> None:
        self._process = process
        self._forget = forget
        self._output = process.output(Stream.STDOUT)
        self._read = bytearray()
        self._end = asyncio.ensure_future(process.wait())
        self._over = False
        self.waits = False
        """Whether it serves the next request although this one failed."""

    @property
    def alive(self) -> bool:
        """Whether it can be asked: programs of the sandbox may have ended it."""
        return not self._over and not self._end.done()

    async def ask(self, request: dict[str, Any], chunks: AsyncIterator[bytes] | None = None) -> None:
        """Sends a request and what belongs to it. Raises what ``chunks`` raise."""
        self.waits = False
        out = bytearray(_frame(b"Q", json.dumps(request).encode()))
        try:
            if chunks is not None:
                async for chunk in _chunks(chunks):
                    out += _frame(b"D", chunk)
                    if len(out) >= PIECE:
                        await self._send(bytes(out))
                        out.clear()
                out += _frame(b"E", b"")
        except BaseException:
            if self.alive:
                await self._send(bytes(out) + _frame(b"X", b""))
                await self._last()
                self.waits = True
            raise
        await self._send(bytes(out))

    async def answer(self, path: str) -> Any:
        """Returns the program's answer. Raises _Refused, SandboxFault."""
        return self._judged(*await self._last(), path)

    async def pieces(self, path: str) -> AsyncIterator[bytes]:
        """Yields what the program gives. Raises _Refused, SandboxFault."""
        taken = 0
        while (frame := await self._frame())[0] == b"D":
            yield frame[1]
            taken += len(frame[1])
            if taken >= WINDOW // 2:
                await self._send(_frame(b"C", taken.to_bytes(4)))
                taken = 0
        self._judged(*frame, path)

    async def end(self, *, orderly: bool = False) -> None:
        """Ends the program: by itself, or at once."""
        self._over = True
        self._end.cancel()
        try:
            await (self._process.close_stdin() if orderly else self._process.kill("nobody asks it any more"))
            await self._process.wait()
            if self._forget is not None:
                await self._forget(self._process.id)
        except (SandboxGone, SandboxFault):  # nothing is left of it, or it stays known for as long as the sandbox
            return

    async def _send(self, data: bytes) -> None:
        try:
            await self._process.send(data)
        except SandboxGone:
            raise await self._ending() from None

    async def _last(self) -> tuple[bytes, bytes]:
        frame = await self._frame()
        if frame[0] == b"D":
            raise SandboxFault("the files program gave what nobody asked for")
        return frame

    async def _frame(self) -> tuple[bytes, bytes]:
        """Returns the next frame. Raises SandboxFault for what is none."""
        while len(self._read) < 5 or len(self._read) < 5 + int.from_bytes(self._read[1:5]):
            if len(self._read) >= 5 and int.from_bytes(self._read[1:5]) > max(PIECE, _MOST_WORDS):
                raise SandboxFault("the files program sent a frame over the limit")
            try:
                async with asyncio.timeout(STALLED_S):
                    piece = await anext(self._output, b"")
            except TimeoutError:
                raise SandboxFault(f"the files program said nothing for {STALLED_S:.0f} s") from None
            if not piece:
                raise await self._ending()
            self._read += piece
        size = int.from_bytes(self._read[1:5])
        kind, payload = bytes(self._read[:1]), bytes(self._read[5 : 5 + size])
        del self._read[: 5 + size]
        return kind, payload

    def _judged(self, kind: bytes, payload: bytes, path: str) -> Any:
        told = _object(payload)
        if kind == b"O":
            return told
        match told:
            case {"status": int(status), "text": str(text)} if kind == b"F":
                raise _Refused(_error(path, status, text[:300]))
        raise SandboxFault("the files program answered in no form that we know")

    async def _ending(self) -> SkillyardError:
        self._over = True
        self._end.cancel()
        await self._process.kill("it does not answer")
        ending = await self._process.wait()
        if ending.outcome is Outcome.DISK:  # a supervised limit ends the sandbox
            return QuotaExceeded("path", ending.reason)
        return SandboxFault(f"the files program ended with {ending.outcome} {ending.code}: {ending.reason}")


def _frame(kind: bytes, payload: bytes) -> bytes:
    return kind + len(payload).to_bytes(4) + payload


async def _chunks(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        for at in range(0, len(chunk), PIECE):
            yield chunk[at : at + PIECE]


def _object(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _entry(row: Any) -> Entry:
    match row:
        case {"name": str(name), "kind": str(kind), "size": int(size), "mode": int(mode), "modified": int() | float()}:
            if 0 <= size < _MOST_SIZE and 0 <= mode <= 0o7777 and abs(row["modified"]) < _MOST_SIZE and kind in _KINDS:
                return Entry(name, kind, size, mode, float(row["modified"]))
    raise SandboxFault("the sandbox described its files in no form that we know")


def _error(path: str, status: int, text: str) -> SkillyardError:
    match status:
        case _ if status == MISSING:
            return FileNotFound("path", f"there is no {path!r}")
        case _ if status == NOT_REGULAR:
            return FileNotFound("path", f"{path!r} is not what can be read so: {text}")
        case _ if status == NO_SPACE:
            return QuotaExceeded("path", f"the disk limit leaves no room for {path!r}")
        case _ if status == REFUSED:
            return InvalidInput("path", f"{path!r} is refused: {text}")
        case _ if status == DAMAGED:
            return InvalidInput("chunks", text)
        case _:
            return SandboxFault(f"the files program failed with {status}: {text}")


class FilesOfSandbox:
    """The file operations of a sandbox, for a backend that implements :meth:`start_files`."""

    _files: Files | None = None

    async def start_files(self) -> Process:
        """Starts the files program with its standard input open.

        Its limits are :data:`STREAMS` and :data:`LIFETIME_MS`.
        """
        raise NotImplementedError

    def place(self, path: str) -> str:
        """Returns the path that the files program knows. Raises InvalidInput."""
        return path

    @property
    def files(self) -> Files:
        if self._files is None:
            self._files = Files(self.start_files, self.forget if isinstance(self, Forgetting) else None)
        return self._files

    def read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        return self.files.read(self.place(path), offset, length)

    async def write(self, path: str, chunks: AsyncIterator[bytes], *, mode: int = 0o644) -> int:
        return await self.files.write(self.place(path), chunks, mode=mode)

    async def entries(self, path: str) -> Sequence[Entry]:
        return await self.files.entries(self.place(path))

    async def stat(self, path: str) -> Entry:
        return await self.files.stat(self.place(path))

    async def remove(self, path: str) -> None:
        await self.files.remove(self.place(path))

    async def put(self, path: str, chunks: AsyncIterator[bytes]) -> None:
        await self.files.put(self.place(path), chunks)

    def get(self, path: str) -> AsyncIterator[bytes]:
        return self.files.get(self.place(path))

    async def end_files(self) -> None:
        if self._files is not None:
            await self._files.end()

    def lost_files(self) -> None:
        """Forgets the files program of a sandbox that is gone."""
        if self._files is not None:
            self._files.lost()
