"""A client of the Engine API of Docker and Podman on a unix socket.

Plain calls go through httpx2. A stream that takes a connection over (an exec's standard input and output) is begun with
h11 on a connection of its own, as httpx2 gives such connections no writer that can be used without waiting.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from skillyard.domain.errors import BackendAway, SandboxFault
from skillyard.domain.foreign_json import BadJson, parse_json

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")
CALL_S = 120.0
"""How long one call may take: an engine under load makes a container in seconds."""
BUILD_S = 900.0
"""How long a build may say nothing."""
CONNECT_S = 10.0
_REMOVE_S, _AGAIN_S = 30.0, 0.2
_MISSING = 404
_PASSING = (409, 500)
_MOST_SAID = 500
_MOST_HEAD = 64 * 1024
_MOST_ANSWER, _MOST_LINE = 32 << 20, 1 << 20
"""Bytes of an answer, as a list of all containers, and of a line of a build."""
_READ = 256 * 1024
_HEADER = 8


class EngineRefused(SandboxFault):
    """The engine answered with an error."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"the container engine refuses: {said}")
        self.status = status


class Engine:
    """The engine behind ``socket``. Nothing is opened before the first call, or after it was closed."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self._client: httpx2.AsyncClient | None = None
        self._base = ""
        self._closed = False
        self._work: set[asyncio.Future[Any]] = set()

    async def version(self) -> Mapping[str, Any]:
        """Returns what the engine tells of itself. Raises BackendAway."""
        told = await self._ask("GET", "/version")
        if not isinstance(told, dict) or not isinstance(told.get("ApiVersion"), str):
            raise BackendAway(f"{self.socket} is not a container engine's socket")
        self._base = f"/v{told['ApiVersion']}"
        return told

    async def call(self, method: str, path: str, body: object = None, **params: str | int) -> Any:
        """Returns the JSON of an answer; None where it has none. Raises EngineRefused, BackendAway."""
        if not self._base:
            await self.version()
        return await self._ask(method, self._base + path, body, **params)

    async def stream(
        self, path: str, body: bytes, kind: str, params: Mapping[str, str]
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Posts ``body`` and yields the JSON objects of the answer as they come, one a line.

        Raises EngineRefused, BackendAway.
        """
        import httpx2

        if not self._base:
            await self.version()
        headers, slow = {"Content-Type": kind}, httpx2.Timeout(BUILD_S, connect=CONNECT_S)
        asked = self._opened().stream(
            "POST", self._base + path, content=body, params=params, headers=headers, timeout=slow
        )
        try:
            async with asked as answer:
                if not answer.is_success:
                    raise EngineRefused(answer.status_code, _said(await _body(answer)))
                async for line in _lines(answer):
                    if line.strip() and isinstance(told := parse_json(line), dict):
                        yield told
        except (httpx2.HTTPError, ValueError) as error:
            raise BackendAway(f"the container engine at {self.socket} ended its answer: {_why(error)}") from None

    def _opened(self) -> httpx2.AsyncClient:
        import httpx2

        if self._closed:
            raise BackendAway(f"the container engine at {self.socket} was let go of")
        if self._client is None:
            transport = httpx2.AsyncHTTPTransport(uds=self.socket)
            limits = httpx2.Timeout(CALL_S, connect=CONNECT_S)
            # An answer that is packed could be a thousand times as large as the bytes that come.
            plain = {"Accept-Encoding": "identity"}
            self._client = httpx2.AsyncClient(
                transport=transport, base_url="http://engine", timeout=limits, headers=plain
            )
        return self._client

    async def _ask(self, method: str, path: str, body: object = None, **params: str | int) -> Any:
        import httpx2

        asked = self._opened().stream(method, path, json=body, params=params)
        try:
            async with asyncio.timeout(CALL_S), asked as answer:
                content = await _body(answer)
        except (httpx2.HTTPError, TimeoutError, ValueError) as error:
            raise BackendAway(f"the container engine at {self.socket} does not answer: {_why(error)}") from None
        if not answer.is_success and answer.status_code != 304:
            raise EngineRefused(answer.status_code, _said(content))
        try:
            return parse_json(content) if content and "json" in answer.headers.get("content-type", "") else None
        except BadJson as bad:
            raise BackendAway(f"the container engine at {self.socket} answers in another form: {bad}") from None

    async def hijack(self, path: str, body: object = None) -> tuple[Demultiplexed, asyncio.StreamWriter]:
        """Begins a stream that takes the connection over. Raises EngineRefused, BackendAway."""
        if not self._base:
            await self.version()
        given = b"" if body is None else json.dumps(body).encode()  # one that is not read would be input
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_unix_connection(self.socket)
        except (OSError, TimeoutError) as error:
            raise BackendAway(f"the container engine at {self.socket} does not answer: {_why(error)}") from None
        try:
            async with asyncio.timeout(CALL_S):
                early = await _upgrade(reader, writer, self._base + path, given)
        except BaseException as error:
            writer.close()
            if isinstance(error, OSError | EOFError | TimeoutError):
                raise BackendAway(f"the container engine gave no stream: {_why(error)}") from None
            raise
        return Demultiplexed(reader, early), writer

    async def remove(self, name: str) -> None:
        """Ends and removes a container; returns when the engine does not know it any more.

        Raises SandboxFault, BackendAway.
        """
        until = asyncio.get_running_loop().time() + _REMOVE_S
        while True:
            try:
                await self.call("DELETE", f"/containers/{name}", force=1, v=1)
                await self.call("GET", f"/containers/{name}/json")
            except EngineRefused as refused:
                if refused.status == _MISSING:
                    return
                # Somebody else removes it at this moment; or it has just ended, which Podman calls improper.
                if refused.status not in _PASSING or asyncio.get_running_loop().time() > until:
                    raise
            if asyncio.get_running_loop().time() > until:
                raise SandboxFault(f"the container engine does not remove the container {name}")
            await asyncio.sleep(_AGAIN_S)

    async def finished(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of ``work``, which is also done where the caller is cancelled."""
        working = asyncio.ensure_future(work)
        self._work.add(working)
        working.add_done_callback(self._work.discard)
        return await asyncio.shield(working)

    async def close(self) -> None:
        await asyncio.gather(*self._work, return_exceptions=True)
        self._closed = True
        if self._client is not None:
            await self._client.aclose()
            self._client = None


class Demultiplexed:
    """The standard output in a stream of frames.

    A frame begins with a byte that names the source, three of nothing, and four of length.
    """

    def __init__(self, reader: asyncio.StreamReader, early: bytes) -> None:
        self._reader, self._head = reader, bytearray(early)
        self._left = 0
        self._wanted = False

    async def read(self, n: int = -1, /) -> bytes:
        """Returns at most ``n`` bytes as soon as there are any; none at the end."""
        most = _READ if n < 0 else n
        while True:
            if self._left:
                piece = bytes(self._head[: min(most, self._left)])
                del self._head[: len(piece)]
                if not piece:
                    piece = await self._reader.read(min(most, self._left))
                if not piece:
                    return b""
                self._left -= len(piece)
                if self._wanted:
                    return piece
            elif len(self._head) >= _HEADER:
                self._wanted = self._head[0] == 1
                self._left = int.from_bytes(self._head[4:_HEADER], "big")
                del self._head[:_HEADER]
            elif more := await self._reader.read(_READ):
                self._head += more
            else:
                return b""


async def _upgrade(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes) -> bytes:
    """Asks for the stream; returns the bytes of it that came with the answer. Raises EngineRefused, EOFError."""
    import h11

    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_HEAD)
    headers = [("Host", "engine"), ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    headers += [("Connection", "Upgrade"), ("Upgrade", "tcp")]
    request = h11.Request(method="POST", target=path, headers=headers)
    for event in (request, h11.Data(data=body), h11.EndOfMessage()):
        writer.write(connection.send(event) or b"")
    await writer.drain()
    status, said = 0, b""
    while True:
        try:
            got = connection.next_event()
        except h11.RemoteProtocolError as error:
            raise EOFError(str(error)) from None
        if got is h11.NEED_DATA:
            if not (data := await reader.read(_READ)):
                raise EOFError("the connection ended")
            connection.receive_data(data)
        elif isinstance(got, h11.InformationalResponse) and got.status_code == 101:
            return bytes(connection.trailing_data[0])
        elif isinstance(got, h11.Response):
            status = got.status_code
            if status == 200:  # engines that answer without the word Upgrade
                return bytes(connection.trailing_data[0])
        elif isinstance(got, h11.Data):
            said = (said + bytes(got.data))[:_MOST_SAID]
        else:
            raise EngineRefused(status, _said(said))


async def _body(answer: httpx2.Response) -> bytes:
    """Returns the body as it came. Raises ValueError for one that is longer than any of an engine's."""
    body = bytearray()
    async for piece in answer.aiter_raw(_READ):
        body += piece
        if len(body) > _MOST_ANSWER:
            raise ValueError(f"its answer is longer than {_MOST_ANSWER >> 20} MiB")
    return bytes(body)


async def _lines(answer: httpx2.Response) -> AsyncIterator[bytes]:
    """Yields the lines of a body. Raises ValueError for one that is too long."""
    rest = bytearray()
    async for piece in answer.aiter_raw(_READ):
        rest += piece
        *lines, last = rest.split(b"\n")
        rest = bytearray(last)
        if len(rest) > _MOST_LINE:
            raise ValueError(f"a line of its answer is longer than {_MOST_LINE >> 20} MiB")
        for line in lines:
            yield bytes(line)
    yield bytes(rest)


def _said(content: bytes) -> str:
    """Returns an engine's message, printable and bounded."""
    try:
        told = json.loads(content)
        text = str(told.get("message") or told.get("cause") or told) if isinstance(told, dict) else str(told)
    except (ValueError, RecursionError):
        text = content.decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in text[:_MOST_SAID]).strip()


def _why(error: BaseException) -> str:
    return str(error)[:200] or type(error).__name__
