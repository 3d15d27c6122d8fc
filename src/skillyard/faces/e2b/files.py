"""Contents of files: ``GET`` and ``POST /files`` of E2B's daemon, with an access token or by a signed URL."""

from __future__ import annotations

import mimetypes
import zlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.types import Receive, Scope

from skillyard.domain.errors import FileNotFound, InvalidInput, QuotaExceeded, SandboxGone
from skillyard.domain.sandbox.spec import Entry
from skillyard.faces.e2b.access import READ, WRITE, Access, Signed, sandbox_id
from skillyard.faces.e2b.call import Call
from skillyard.faces.e2b.daemon import Daemon, Place, check_user, user_of
from skillyard.faces.e2b.errors import ApiRefusal, NotRunning
from skillyard.faces.e2b.filesystem import ask
from skillyard.faces.http import request
from skillyard.faces.http.blobs import read_range
from skillyard.faces.http.errors import BadRequest, MethodNotAllowed, PayloadTooLarge, UnsupportedMediaType
from skillyard.faces.http.lifecycle import Lifecycle
from skillyard.faces.http.replies import end, piece, reply, start
from skillyard.faces.http.request import HttpCaller
from skillyard.faces.rpc.wire import dumps

PATH = "/files"
MOST_FILES = 1000
_UNZIPPED = 64 * 1024
_METADATA = b"x-metadata-"


class Files:
    """Reads and writes files of sandboxes. ``most`` bounds the bytes of one request, unpacked ones too."""

    def __init__(self, access: Access, daemon: Daemon, life: Lifecycle, most: int) -> None:
        self._access = access
        self._daemon = daemon
        self._life = life
        self._most = most

    async def __call__(self, call: Call, named: str) -> None:
        if call.method not in ("GET", "HEAD", "POST"):
            raise MethodNotAllowed("GET", "HEAD", "POST")
        query = call.query()
        user = query.get("username", "")
        operation = WRITE if call.method == "POST" else READ
        if "signature" in query:
            asked = query.get("path", ""), operation, user, query["signature"], query.get("signature_expiration", "")
            record = await self._access.of_signature(Signed(*asked), named)
        elif not named:
            raise ApiRefusal(401, "signature: must be given, or the access token of a sandbox with its id")
        else:
            record = await self._access.of_daemon(named, call.headers)
            user_of(call)
        check_user(user)
        place = await self._daemon.place(record)
        try:
            if operation == READ:
                await self._read(call, place, query.get("path", ""))
            else:
                await self._write(call, place, query.get("path"))
        except SandboxGone:
            raise NotRunning(sandbox_id(record)) from None

    async def _read(self, call: Call, place: Place, text: str) -> None:
        path = place.path(text)
        inside, about = await _found(place, path)
        # A range is for GET alone (RFC 9110 §14.2).
        asked = call.header("range") if call.method == "GET" else ""
        part = read_range(asked or None, about.size)
        first, length = (part.start, part.length) if part is not None else (0, about.size)
        kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
        name = path.rpartition("/")[2].encode("ascii", "replace").decode().replace('"', "'").replace("\\", "_")
        headers = {
            "content-type": kind,
            "content-length": str(length),
            "accept-ranges": "bytes",
            "content-disposition": f'attachment; filename="{"".join(c for c in name if c.isprintable())}"',
            **({} if part is None else {"content-range": part.content_range(about.size)}),
        }
        if call.method == "HEAD":
            await start(call.send, 200, headers)
            await end(call.send)
            return
        with call.staying(place.owner):
            async with HttpCaller(call.receive, self._life) as caller:
                await caller.wait(_send(call, place, inside, first, length, headers, 200 if part is None else 206))
        await end(call.send)

    async def _write(self, call: Call, place: Place, text: str | None) -> None:
        if any(name.startswith(_METADATA) for name in call.headers):
            raise ApiRefusal(400, "X-Metadata: files have no metadata here")
        kind, options = parse_options_header(call.header("content-type"))
        intake = Intake(call.scope, call.receive, self._most, call.header("content-encoding").lower())
        with self._life.working():
            if kind == b"multipart/form-data":
                written = await _parts(place, intake, options.get(b"boundary", b""), text)
            elif kind == b"application/octet-stream":
                if text is None:
                    raise InvalidInput("path", "must be given")
                written = [await _one(place, text, intake.pieces())]
            else:
                raise UnsupportedMediaType("Content-Type: must be multipart/form-data or application/octet-stream")
        await reply(call.send, 200, dumps(written))


class Intake:
    """The body of a request, unpacked, within bounds."""

    def __init__(self, scope: Scope, receive: Receive, most: int, encoding: str) -> None:
        if encoding not in ("", "identity", "gzip"):
            raise UnsupportedMediaType("Content-Encoding: must be gzip, or none")
        self._scope = scope
        self._receive = receive
        self._most = most
        self._zipped = encoding == "gzip"

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yields the body. Raises BadRequest for what is not gzip, PayloadTooLarge, SlowBody, CallerGone."""
        total = 0
        async with aclosing(request.stream(self._scope, self._receive, self._most)) as raw:
            async for data in self._unzipped(raw) if self._zipped else raw:
                total += len(data)
                if total > self._most:
                    raise PayloadTooLarge(self._most)
                yield data

    async def _unzipped(self, raw: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        unzip = zlib.decompressobj(16 + zlib.MAX_WBITS)
        try:
            async for data in raw:
                while data:
                    if unzip.eof:
                        raise BadRequest("Content-Encoding: there are bytes behind the end of gzip")
                    yield unzip.decompress(data, _UNZIPPED)
                    data = unzip.unconsumed_tail or unzip.unused_data
        except zlib.error:
            raise BadRequest("Content-Encoding: the body is not gzip") from None
        if not unzip.eof:
            raise BadRequest("Content-Encoding: the body ends within gzip")


async def _found(place: Place, path: str) -> tuple[str, Entry]:
    """Returns the place of a regular file, behind links, and what it is. Raises FileNotFound, ApiRefusal."""
    inside = place.inside(path)
    try:
        about = await place.programs.sandbox.stat(inside)
        if about.kind == "link":
            told = (await ask(place, "real", inside)).get("path")
            inside = told if isinstance(told, str) else inside
            about = await place.programs.sandbox.stat(inside)
    except FileNotFound:
        raise ApiRefusal(404, f"path '{path}' does not exist") from None
    if about.kind != "file":
        raise ApiRefusal(400, f"path '{path}' is not a file: it is a {about.kind}")
    return inside, about


async def _send(
    call: Call, place: Place, inside: str, first: int, length: int, headers: dict[str, str], status: int
) -> None:
    """Sends a part of a file. One that became shorter meanwhile breaks the connection off."""
    begun, left = False, length
    async for data in place.programs.sandbox.read(inside, first, length):
        if not begun:
            await start(call.send, status, headers)
            begun = True
        data = data[:left]
        left -= len(data)
        for at in range(0, len(data), _UNZIPPED):
            await piece(call.send, data[at : at + _UNZIPPED])
    if not begun:
        await start(call.send, status, headers)
    if left:
        raise ApiRefusal(500, "the file became shorter while it was read")


async def _one(place: Place, text: str, pieces: AsyncIterator[bytes]) -> dict[str, Any]:
    """Writes a file and returns what is told of it. Raises ApiRefusal."""
    path = place.path(text)
    try:
        await place.programs.sandbox.write(place.inside(path), pieces)
    except QuotaExceeded:
        raise ApiRefusal(507, f"not enough disk space for '{path}'") from None
    except FileNotFound as error:
        raise ApiRefusal(400, f"path '{path}' cannot be written: {error.rule}") from None
    return {"name": path.rpartition("/")[2], "type": "file", "path": path}


class _Part:
    """One part of a form: its headers, and its bytes as they come."""

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.known = False
        self.over = False
        self.data: list[bytes] = []

    @property
    def file(self) -> str | None:
        """Returns the name of its file; None for a field that is not one."""
        _, options = parse_options_header(self.headers.get(b"content-disposition", b""))
        name = options.get(b"filename")
        if options.get(b"name") != b"file" or name is None:
            return None
        try:
            return name.decode()
        except UnicodeDecodeError:
            raise BadRequest("filename: must be UTF-8") from None


class _Form:
    """Reads a form part by part, each piece when it is asked for."""

    def __init__(self, source: AsyncIterator[bytes], boundary: bytes) -> None:
        self._source = source
        self._queue: list[_Part] = []
        self._name, self._value = bytearray(), bytearray()
        self._done = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": lambda: self._queue.append(_Part()),
                    "on_header_field": lambda data, first, last: self._name.extend(data[first:last]),
                    "on_header_value": lambda data, first, last: self._value.extend(data[first:last]),
                    "on_header_end": self._header,
                    "on_headers_finished": self._headers,
                    "on_part_data": lambda data, first, last: self._queue[-1].data.append(data[first:last]),
                    "on_part_end": self._end,
                },
            )
        except FormParserError as error:
            raise BadRequest(f"Content-Type: {error}"[:200]) from None

    def _header(self) -> None:
        self._queue[-1].headers[bytes(self._name).lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _headers(self) -> None:
        self._queue[-1].known = True

    def _end(self) -> None:
        self._queue[-1].over = True

    async def more(self) -> bool:
        """Takes the next bytes; returns whether there were any. Raises BadRequest."""
        if self._done:
            return False
        try:
            async for data in self._source:
                self._parser.write(data)
                return True
            self._done = True
            self._parser.finalize()
        except FormParserError as error:
            raise BadRequest(f"the form cannot be read: {error}"[:200]) from None
        return False

    async def part(self) -> _Part | None:
        """Returns the next part, whose headers are known; None at the end."""
        while not (self._queue and self._queue[0].known):
            if not await self.more():
                return None
        return self._queue[0]

    async def bytes_of(self, part: _Part) -> AsyncIterator[bytes]:
        """Yields the bytes of the first part, and takes it away. Raises BadRequest for a form that breaks off."""
        while True:
            held, part.data = part.data, []
            for data in held:
                yield data
            if part.over and not part.data:
                break
            if not await self.more() and not part.over:
                raise BadRequest("the form ends within a part")
        self._queue.remove(part)


async def _parts(place: Place, intake: Intake, boundary: bytes, text: str | None) -> list[dict[str, Any]]:
    """Writes each file of a form, under its own name or the one that the query gives. Raises ApiRefusal, BadRequest."""
    form = _Form(intake.pieces(), boundary)
    written: list[dict[str, Any]] = []
    while (part := await form.part()) is not None:
        name = part.file
        if name is None:
            async for _ in form.bytes_of(part):
                continue
            continue
        if len(written) == MOST_FILES:
            raise ApiRefusal(400, f"one request may write {MOST_FILES} files")
        if text is not None and written:
            raise ApiRefusal(400, "path: is for one file, and there are several")
        written.append(await _one(place, name if text is None else text, form.bytes_of(part)))
    if not written:
        raise ApiRefusal(400, "the form must have a file under the name 'file'")
    return written
