"""The Connect protocol with JSON: calls, and streams of framed messages.

Its description is at connectrpc.com/docs/protocol.

The library of the protocol for Python speaks protobuf of generated code alone, and brings a client in Rust. The part
that the SDKs use is a frame of five bytes before each message.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from skillyard.domain.errors import SkillyardError, shape
from skillyard.faces.e2b.call import Call, parsed
from skillyard.faces.e2b.errors import INVALID, UNAVAILABLE, UNIMPLEMENTED, RpcRefusal, rpc_error
from skillyard.faces.http import request
from skillyard.faces.http.errors import MethodNotAllowed
from skillyard.faces.http.lifecycle import Lifecycle
from skillyard.faces.http.replies import end, piece, reply, start
from skillyard.faces.http.request import HttpCaller
from skillyard.faces.rpc.wire import dumps

_UNARY, _STREAM = "application/json", "application/connect+json"
_HEAD = 5
_LAST, _COMPRESSED = 0b10, 0b01
_TIMEOUT = re.compile(r"[0-9]{1,10}")
MOST_MESSAGE, MOST_STREAM = 8 * 1024 * 1024, 1 << 40
"""Bytes of one message of an endless request, and of all of them."""
_PACE = request.Pace(idle_s=24 * 3600.0, bytes_per_s=1)
"""A person at a terminal types at any pace."""
_USUAL_PING_S, _LEAST_PING_S = 90.0, 1.0
Message = Mapping[str, Any]


def timeout_ms(call: Call) -> int | None:
    """Returns the time that a call may take in all; None for any. Raises RpcRefusal."""
    text = call.header("connect-timeout-ms")
    if not text:
        return None
    if not _TIMEOUT.fullmatch(text):
        raise RpcRefusal(INVALID, "Connect-Timeout-Ms: must be a number of at most ten digits")
    return int(text) or None


def _check(call: Call, kind: str) -> None:
    if call.method != "POST":
        raise MethodNotAllowed("POST")
    given = call.header("content-type").partition(";")[0].strip().lower()
    if given != kind:
        raise RpcRefusal(UNIMPLEMENTED, f"Content-Type: must be '{kind}'; no other codec is spoken here")
    if call.header("content-encoding") not in ("", "identity"):
        raise RpcRefusal(UNIMPLEMENTED, "Content-Encoding: messages are taken uncompressed")
    if call.header("connect-content-encoding") not in ("", "identity"):
        raise RpcRefusal(UNIMPLEMENTED, "Connect-Content-Encoding: messages are taken uncompressed")


async def unary(call: Call, owner: str) -> dict[str, Any]:
    """Returns the message of a call that is not a stream. Raises RpcRefusal, InvalidInput."""
    _check(call, _UNARY)
    return parsed(await call.raw(owner))


async def answer(call: Call, message: Message) -> None:
    """Answers a call that is not a stream."""
    await reply(call.send, 200, dumps(message))


async def only(call: Call, owner: str) -> dict[str, Any]:
    """Returns the one message of a call whose answer is a stream. Raises RpcRefusal, InvalidInput."""
    _check(call, _STREAM)
    data = await call.raw(owner)
    frames = Frames(len(data))
    messages = frames.feed(data)
    frames.finish()
    if len(messages) != 1:
        raise RpcRefusal(INVALID, f"the request must have one message, not {len(messages)}")
    return parsed(messages[0])


async def incoming(call: Call) -> AsyncGenerator[dict[str, Any]]:
    """Yields the messages of a request that is a stream, as they come. Raises RpcRefusal, InvalidInput, CallerGone."""
    _check(call, _STREAM)
    frames = Frames(MOST_MESSAGE)
    async with aclosing(request.stream(call.scope, call.receive, MOST_STREAM, _PACE)) as pieces:
        async for data in pieces:
            for message in frames.feed(data):
                yield parsed(message)
    frames.finish()


class Frames:
    """Reads a stream of messages, however it is cut. A message has at most ``most`` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._read = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the messages that ``data`` completes. Raises RpcRefusal for a stream that breaks the protocol."""
        self._read += data
        found = []
        while len(self._read) >= _HEAD:
            flags, size = self._read[0], int.from_bytes(self._read[1:_HEAD])
            if flags & _COMPRESSED:
                raise RpcRefusal(UNIMPLEMENTED, "messages are taken uncompressed")
            if flags or size > self._most:
                raise RpcRefusal(INVALID, f"the request is not a stream of messages of at most {self._most} bytes")
            if len(self._read) < _HEAD + size:
                break
            found.append(bytes(self._read[_HEAD : _HEAD + size]))
            del self._read[: _HEAD + size]
        return found

    def finish(self) -> None:
        """Raises RpcRefusal for a stream that ends within a message."""
        if self._read:
            raise RpcRefusal(INVALID, "the request ends within a message")


def frame(message: Message, flags: int = 0) -> bytes:
    """Returns a message in its frame."""
    data = dumps(message)
    return bytes([flags]) + len(data).to_bytes(4) + data


async def stream(call: Call, life: Lifecycle, messages: AsyncIterator[Message], silent: Message) -> None:
    """Answers with a stream. ``silent`` is sent whenever there was nothing to say for a while.

    An error of ``messages`` is told as the end of the stream. When the client goes away, or the server stops, they are
    closed.
    """
    await start(call.send, 200, {"content-type": _STREAM})
    async with HttpCaller(call.receive, life) as caller:
        try:
            async with life.until_drained():
                last = await caller.wait(_sent(call, messages, silent))
        except TimeoutError:
            last = {"error": {"code": UNAVAILABLE, "message": "the server is stopping"}}
    await piece(call.send, frame(last, _LAST))
    await end(call.send)


async def _sent(call: Call, messages: AsyncIterator[Message], silent: Message) -> dict[str, Any]:
    """Sends all messages, and returns how the stream ends."""
    ping_s = _ping_s(call)
    following: asyncio.Future[Message] | None = None
    async with aclosing(messages):  # type: ignore[type-var]
        try:
            while True:
                following = following or asyncio.ensure_future(anext(messages))
                done, _ = await asyncio.wait({following}, timeout=ping_s)
                if not done:
                    await piece(call.send, frame(silent))
                    continue
                message, following = following.result(), None
                await piece(call.send, frame(message))
        except StopAsyncIteration:
            return {}
        except SkillyardError as error:
            return {"error": rpc_error(error)}
        finally:  # before it is closed: it runs until then
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)


def _ping_s(call: Call) -> float:
    text = call.header("keepalive-ping-interval")
    return max(_LEAST_PING_S, float(text)) if text.isascii() and text.isdigit() and len(text) < 6 else _USUAL_PING_S


def chosen(message: Message, *names: str) -> tuple[str, Any]:
    """Returns the one field of a choice (``oneof``) that a message has. Raises RpcRefusal."""
    found = [name for name in names if message.get(name) is not None]
    if len(found) != 1:
        raise RpcRefusal(INVALID, f"must have one of {', '.join(names)}")
    return found[0], message[found[0]]


def part(message: Message, name: str) -> dict[str, Any]:
    """Returns a message within another; an empty one where there is none. Raises RpcRefusal."""
    value = message.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RpcRefusal(INVALID, f"{name}: must be an object, not {shape(value)}")
    return value
