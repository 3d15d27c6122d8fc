"""Files of a sandbox through a program inside it: for every backend that can start programs.

The program is :mod:`skillyard.guest.files`; its exit statuses say what went wrong.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from skillyard.domain.errors import (
    FileNotFound,
    InvalidInput,
    QuotaExceeded,
    SandboxFault,
    SandboxGone,
    SkillyardError,
)
from skillyard.domain.sandbox.spec import Entry, Stream
from skillyard.domain.work.record import Ending, Outcome
from skillyard.guest.files import DONE, MAX_ENTRIES, MISSING, NO_SPACE, NOT_REGULAR, REFUSED
from skillyard.ports.sandbox import Process

StartFiles = Callable[[Sequence[str], bool], Awaitable[Process]]
"""Starts the files program with arguments; the flag says whether its standard input is wanted."""

_MAX_LISTING = 16 * 1024 * 1024
_MOST_SIZE = 1 << 63


async def read_file(start: StartFiles, path: str, offset: int, length: int | None) -> AsyncIterator[bytes]:
    """Yields a file as the port's ``read`` does. The first chunk may come before a late failure is known."""
    process = await start(("read", path, str(offset), "-" if length is None else str(length)), False)
    async for piece in process.output(Stream.STDOUT):
        yield piece
    await _check(process, path)


async def write_file(start: StartFiles, path: str, chunks: AsyncIterator[bytes], mode: int) -> int:
    """Writes a file as the port's ``write`` does: it appears whole or not at all."""
    process = await start(("write", path, f"{mode:o}"), True)
    try:
        async for chunk in chunks:
            await process.send(chunk)
        await process.close_stdin()
    except SandboxGone:
        await _check(process, path)
        raise
    except BaseException:
        await process.kill("the writer gave up")
        raise
    await _check(process, path)
    text = b"".join([piece async for piece in process.output(Stream.STDOUT)])
    return _number(text)


async def entries_of(start: StartFiles, path: str) -> Sequence[Entry]:
    """Lists a directory as the port's ``entries`` does."""
    process = await start(("entries", path, str(MAX_ENTRIES)), False)
    listing = bytearray()
    async for piece in process.output(Stream.STDOUT):
        listing += piece
        if len(listing) > _MAX_LISTING:
            await process.kill("the listing is too long")
            raise SandboxFault(f"the listing of {path!r} is over {_MAX_LISTING} bytes")
    await _check(process, path)
    return [_entry(line) for line in bytes(listing).splitlines()]


def _entry(line: bytes) -> Entry:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    match row:
        case {"name": str(name), "kind": str(kind), "size": int(size)} if 0 <= size < _MOST_SIZE:
            return Entry(name, kind, size)
    raise SandboxFault("the sandbox listed its files in no form that we know")


def _number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise SandboxFault("the sandbox did not say how much it wrote") from None


async def _check(process: Process, path: str) -> None:
    ending = await process.wait()
    if ending.outcome is Outcome.EXIT and ending.code == DONE:
        return
    complaint = b"".join([piece async for piece in process.output(Stream.STDERR)])
    raise _error(path, ending, complaint.decode("utf-8", "replace").strip()[:300])


def _error(path: str, ending: Ending, text: str) -> SkillyardError:
    code = ending.code if ending.outcome is Outcome.EXIT else None
    match code:
        case _ if code == MISSING:
            return FileNotFound("path", f"there is no {path!r}")
        case _ if code == NOT_REGULAR:
            return FileNotFound("path", f"{path!r} is not what can be read so: {text}")
        case _ if code == NO_SPACE:
            return QuotaExceeded("path", f"the disk limit leaves no room for {path!r}")
        case _ if code == REFUSED:
            return InvalidInput("path", f"{path!r} is refused: {text}")
        case _:
            return SandboxFault(f"the files program ended with {ending.outcome} {ending.code}: {text}")
