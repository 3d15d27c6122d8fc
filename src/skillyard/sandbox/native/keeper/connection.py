"""The server's end and the keeper's end of their stream: frames of a JSON header and raw bytes.

A frame is two big-endian 32-bit lengths, the header, the body. Sockets come beside the first bytes of a frame of the
keeper's, whose header says by ``sockets`` how many.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

from skillyard.sandbox.native.keeper.loop import READ, WRITE, Loop
from skillyard.sandbox.native.keeper.outbox import Outbox, close_all

HEAD = struct.Struct(">II")
MAX_HEADER = 4 * 1024 * 1024
MAX_BODY = 256 * 1024 * 1024


def encode(header: dict[str, Any], body: bytes = b"") -> bytes:
    raw = json.dumps(header, separators=(",", ":")).encode()
    return b"".join((HEAD.pack(len(raw), len(body)), raw, body))


class FrameBuffer:
    """Takes bytes as they come and gives whole frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Returns complete frames. Raises ValueError for one over the limits or without an object as header."""
        self._data += data
        frames: list[tuple[dict[str, Any], bytes]] = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _next(self) -> tuple[dict[str, Any], bytes] | None:
        if len(self._data) < HEAD.size:
            return None
        header, body = HEAD.unpack_from(self._data)
        if header > MAX_HEADER or body > MAX_BODY:
            raise ValueError("frame over the limit")
        end = HEAD.size + header + body
        if len(self._data) < end:
            return None
        try:
            parsed = json.loads(self._data[HEAD.size : HEAD.size + header])
        except RecursionError:
            raise ValueError("header is nested too deep") from None
        if not isinstance(parsed, dict):
            raise ValueError("header is not an object")
        content = bytes(self._data[HEAD.size + header : end])
        del self._data[:end]
        return parsed, content


class Connection:
    """A connected server. ``on_frame(header, body)`` for each message, ``on_end()`` once."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        on_frame: Callable[[Connection, dict[str, Any], bytes], None],
        on_end: Callable[[Connection], None],
    ) -> None:
        self._loop = loop.guarded(lambda _: self.close())
        self._sock = sock
        self._on_frame = on_frame
        self._on_end = on_end
        self._frames = FrameBuffer()
        self._out = Outbox(sock)
        self._waits = False
        """Whether more is to be sent than the other end has taken."""
        self.open = True
        sock.setblocking(False)
        self._loop.watch(sock.fileno(), READ, self._ready)

    def send(self, header: dict[str, Any], body: bytes = b"", sockets: Sequence[socket.socket] = ()) -> None:
        """``sockets`` are closed here once they are sent, or will never be."""
        if not self.open:
            close_all(sockets)
            return
        if sockets:
            header = {**header, "sockets": len(sockets)}
        self._out.put(encode(header, body), sockets)
        if not self._waits:
            self._flush()

    def check(self) -> None:
        """Close it if the other end is gone, which an event may be yet to tell."""
        poll = select.poll()
        if self.open:
            poll.register(self._sock.fileno(), select.POLLRDHUP)
            if poll.poll(0):
                self.close()

    def close(self) -> None:
        if self.open:
            self.open = False
            self._loop.forget(self._sock.fileno())
            self._sock.close()
            self._out.drop()
            self._on_end(self)

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if self.open and events & ~WRITE:
            self._read()

    def _flush(self) -> None:
        try:
            waits = not self._out.flush()
        except OSError:
            self.close()
            return
        if waits != self._waits:
            self._waits = waits
            self._loop.watch(self._sock.fileno(), READ | WRITE if waits else READ, self._ready)

    def _read(self) -> None:
        try:
            data = self._sock.recv(1 << 20)
            if not data:
                self.close()
                return
            frames = self._frames.feed(data)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self.close()
            return
        for header, body in frames:
            if self.open:
                self._on_frame(self, header, body)
