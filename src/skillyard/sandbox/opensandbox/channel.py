"""The host's end of the door of a sandbox (:mod:`skillyard.sandbox.opensandbox.http_entry`).

All that comes from there is hostile: answers are bounded, redirects are not followed, and what it says of itself is
checked by those who ask.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from skillyard.domain.errors import BackendAway, SandboxFault, SandboxGone
from skillyard.sandbox.opensandbox.http_entry import HEADER

if TYPE_CHECKING:
    import httpx2

CALL_S = 120.0
CONNECT_S = 10.0
_MOST_ANSWER = 1 << 20
_BATCH = 256 * 1024
_HIGH = 1 << 20
_READ = 256 * 1024
_TRIES, _AGAIN_S = 3, 0.2
_PARTING_S = 2.0
_EXCHANGE_S = 25.0
"""Longer than the other end leaves a question for bytes open: what is silent for so long is gone."""


class Door:
    """The door at ``address``. ``headers`` are the server's, for the way there."""

    def __init__(self, address: str, headers: Mapping[str, str], token: str) -> None:
        import httpx2

        self.address = address
        self._client = httpx2.AsyncClient(
            base_url=f"{address.rstrip('/')}/",
            headers={**headers, HEADER: token},
            timeout=httpx2.Timeout(CALL_S, connect=CONNECT_S),
            trust_env=False,
        )
        self._asked = 0
        self._idle = asyncio.Event()

    async def ready(self) -> bool:
        """Returns whether it answers."""
        with suppress(BackendAway):
            status, _ = await self.ask("GET", "ready", timeout_s=CONNECT_S)
            return status == 204
        return False

    async def upload(self, name: str, data: bytes | IO[bytes]) -> None:
        """Sends a file. Raises SandboxFault."""
        size = None
        if not isinstance(data, bytes):
            size = data.seek(0, 2)
            data.seek(0)
        content = data if isinstance(data, bytes) else _pieces(data)
        status, said = await self.ask("PUT", f"upload/{name}", content, size=size)
        if status != 204:
            raise SandboxFault(f"the sandbox takes no upload ({status}): {printable(said)}")

    async def ask(
        self,
        method: str,
        path: str,
        content: bytes | AsyncIterator[bytes] | None = None,
        *,
        size: int | None = None,
        timeout_s: float = CALL_S,
    ) -> tuple[int, bytes]:
        """Returns status and body, at most a MiB. Raises BackendAway."""
        import httpx2

        headers = {} if size is None else {"Content-Length": str(size)}
        self._asked += 1
        try:
            async with asyncio.timeout(timeout_s):
                request = self._client.build_request(method, path, content=content, headers=headers)
                answer = await self._client.send(request, stream=True)
                try:
                    return answer.status_code, await _body(answer)
                finally:
                    await answer.aclose()
        except (httpx2.HTTPError, OSError, TimeoutError) as error:
            raise BackendAway(f"the sandbox does not answer: {str(error)[:200] or type(error).__name__}") from None
        finally:
            self._asked -= 1
            self._idle.set()

    async def close(self) -> None:
        """Closes all connections, after the calls that are open have ended or had a moment to do so."""
        with suppress(TimeoutError):  # a connection that is made while the client closes would be left open
            async with asyncio.timeout(_PARTING_S):
                while self._asked:
                    self._idle.clear()
                    await self._idle.wait()
        await self._client.aclose()


class DoorChannel:
    """A channel: a reader and a writer of :mod:`skillyard.sandbox.agent_channel`."""

    def __init__(self, door: Door, id: str) -> None:
        self._door, self._path = door, f"channel/{id}"
        self._from = self._at = 0
        self._left = b""
        self._waiting = bytearray()
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self._sending = asyncio.create_task(self._sends())
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, door: Door) -> DoorChannel:
        """Raises BackendAway, SandboxGone."""
        id = secrets.token_hex(16)
        status, said = await door.ask("PUT", f"channel/{id}")
        if status in (502, 503, 504):
            raise BackendAway(f"the sandbox does not answer ({status})")
        if status != 204:
            raise SandboxGone(f"the sandbox's agent is not to be had ({status}): {printable(said)}")
        return cls(door, id)

    async def read(self, n: int = -1, /) -> bytes:
        while not self._left:
            if self._failure is not None:
                return b""
            try:
                status, data = await self._again("GET", f"{self._path}?from={self._from}")
            except BackendAway as error:
                raise ConnectionError(error.message) from None
            if status != 200:
                return b""
            self._from += len(data)
            self._left = data
        most = len(self._left) if n < 0 else n
        data, self._left = self._left[:most], self._left[most:]
        return data

    def write(self, data: bytes, /) -> None:
        self._waiting += data
        self._changed.set()

    async def drain(self) -> None:
        while self._failure is None and len(self._waiting) > _HIGH:
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None:
            raise OSError(str(self._failure))

    def close(self) -> None:
        """Closes it, soon. Idempotent."""
        self._failure = self._failure or SandboxFault("the channel was closed")
        self._changed.set()
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())

    async def _sends(self) -> None:
        while self._failure is None:
            if not self._waiting:
                self._changed.clear()
                await self._changed.wait()
                continue
            batch = bytes(self._waiting[:_BATCH])
            try:
                status, _ = await self._again("POST", f"{self._path}?at={self._at}", batch)
            except BackendAway as error:
                self._failure = error
            else:
                if status != 204:
                    self._failure = SandboxFault("the channel ended")
            self._at += len(batch)
            del self._waiting[: len(batch)]
            self._changed.set()

    async def _again(self, method: str, path: str, content: bytes | None = None) -> tuple[int, bytes]:
        """Asks, and asks again after a failure of the way.

        Requests that come twice do nothing twice.
        """
        for _ in range(_TRIES - 1):
            try:
                status, data = await self._door.ask(method, path, content, timeout_s=_EXCHANGE_S)
            except BackendAway:
                await asyncio.sleep(_AGAIN_S)
            else:
                if status not in (502, 503, 504):
                    return status, data
                await asyncio.sleep(_AGAIN_S)
        return await self._door.ask(method, path, content, timeout_s=_EXCHANGE_S)

    async def _end(self) -> None:
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)
        with suppress(BackendAway, RuntimeError):
            await self._door.ask("DELETE", self._path, timeout_s=CONNECT_S)


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    while data := file.read(_READ):
        yield data


async def _body(answer: httpx2.Response) -> bytes:
    body = bytearray()
    async for piece in answer.aiter_raw():
        body += piece
        if len(body) > _MOST_ANSWER:
            raise OSError("an answer is larger than any of the door's")
    return bytes(body)


def printable(said: bytes) -> str:
    return "".join(c if c.isprintable() else " " for c in said[:300].decode("utf-8", "replace"))
