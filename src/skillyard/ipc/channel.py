"""Messages of processes that may be hostile: frames of a stream, and packets read strictly.

A frame is two big-endian 32-bit lengths, a JSON object, raw bytes. Sockets come beside the first bytes of a frame
(unix(7), SCM_RIGHTS), whose object gives their number in ``sockets``.

Every reader bounds the length first, then asks for an object, and closes descriptors that are not expected. Its caller
holds the fields to their forms.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from skillyard.ipc.packets import descriptors, receive_raw, send_some, to_json
from skillyard.values import dataclass

if TYPE_CHECKING:
    import asyncio  # a keeper's loop is its own


class BadMessage(ValueError):
    """A message that breaks the rules; the text is one sentence about it."""


def read_object(raw: bytes | bytearray, most: int) -> dict[str, Any]:
    """Returns a JSON object. Raises BadMessage for anything else, and nothing else."""
    if len(raw) > most:
        raise BadMessage(f"its message has more than {most} bytes")
    try:
        value = json.loads(str(raw, "utf-8"))
    except (ValueError, RecursionError):
        raise BadMessage("its message is not JSON") from None
    if not isinstance(value, dict):
        raise BadMessage("its message is not an object")
    return value


def receive(sock: socket.socket, most: int, fds: int) -> tuple[dict[str, Any], list[int]] | None:
    """Returns the next packet's object and at most ``fds`` descriptors; None at the end.

    Raises BlockingIOError when there is none yet, OSError, and BadMessage."""
    got = receive_raw(sock)
    if got is None:
        return None
    raw, received = got
    try:
        if len(received) > fds:
            raise BadMessage("it sent descriptors")
        return read_object(raw, most), received
    except BadMessage:
        for fd in received:
            os.close(fd)
        raise


HEAD = struct.Struct(">II")
MAX_HEADER = 4 * 1024 * 1024
MAX_BODY = 256 * 1024 * 1024
AT_ONCE = 250
"""Sockets beside one piece: the kernel takes 253 (SCM_MAX_FD)."""
MOST_WAITING = 1024
"""Descriptors that came before the frame that names them is whole."""
BESIDE = socket.CMSG_SPACE(253 * 4)
"""Room for all that the kernel puts beside one piece."""

_READ = 1 << 16
_JOINED = 1 << 16
"""Bytes that are sent by one call where they can be: each call costs more than the copy."""
_TRUNCATED = int(socket.MSG_CTRUNC)  # an enumeration's member is slow to combine
_LOOK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
CROWDED_S = 0.002
"""Before descriptors are sent again when too many are on their way (ETOOMANYREFS)."""

Header = dict[str, Any]
Frame = tuple[Header, bytes, list[int]]


def encode(header: Header, body: bytes = b"", sockets: int = 0) -> bytes:
    if sockets:
        header = {**header, "sockets": sockets}
    raw = to_json(header).encode()
    return b"".join((HEAD.pack(len(raw), len(body)), raw, body))


class Given(Protocol):
    """A descriptor that is given away beside a frame: a socket, or another with its number."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...


def close_all(sockets: Iterable[Given]) -> None:
    for sock in sockets:
        sock.close()


def is_quiet(sock: socket.socket) -> bool:
    """Returns whether the other end is there and has said nothing that was not read.

    A killed process closes its end long before the kernel is done with it and its parent hears of it.
    """
    try:
        sock.recv(1, _LOOK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


class FrameReader:
    """Takes bytes and descriptors as they come and gives whole frames."""

    def __init__(self, max_header: int = MAX_HEADER, max_body: int = MAX_BODY) -> None:
        self._max_header, self._max_body = max_header, max_body
        self._data = bytearray()
        self._descriptors: deque[int] = deque()

    def feed(self, data: bytes, descriptors: Iterable[int] = ()) -> None:
        self._data += data
        self._descriptors.extend(descriptors)

    def next(self) -> Frame | None:
        """Returns the next frame, whose descriptors are the caller's; None until more is fed.

        Raises BadMessage for one over the limits, without an object as header or without the descriptors it names."""
        data = self._data
        if len(self._descriptors) > MOST_WAITING:
            raise BadMessage("too many descriptors")
        if len(data) < HEAD.size:
            return None
        header_size, body_size = HEAD.unpack_from(data)
        if header_size > self._max_header or body_size > self._max_body:
            raise BadMessage("frame over the limit")
        begin = HEAD.size + header_size
        if len(data) < begin + body_size:
            return None
        header = read_object(data[HEAD.size : begin], self._max_header)
        count = header.pop("sockets", 0)
        if type(count) is not int or not 0 <= count <= len(self._descriptors):
            raise BadMessage("its descriptors did not come")
        with memoryview(data) as view:  # one copy
            body = bytes(view[begin : begin + body_size])
        del data[: begin + body_size]
        return header, body, [self._descriptors.popleft() for _ in range(count)]

    def close(self) -> None:
        """Drops the bytes and closes the descriptors of frames that are not whole. Idempotent."""
        self._data.clear()
        while self._descriptors:
            os.close(self._descriptors.popleft())


@dataclass(slots=True)
class _Piece:
    data: bytes | bytearray
    beside: Sequence[Given]


class Outbox:
    """Bytes that a non-blocking socket has yet to send, and the sockets beside them.

    Sockets are closed here when they are sent and when they are dropped."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pieces: deque[_Piece] = deque()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def put(self, data: bytes, sockets: Sequence[Given] = ()) -> None:
        """Adds ``data``; ``sockets`` arrive with its first bytes."""
        for first in range(0, len(sockets), AT_ONCE):
            self._pieces.append(_Piece(data[:1], sockets[first : first + AT_ONCE]))
            data = data[1:]
        last = self._pieces[-1] if self._pieces else None
        small = last is not None and len(last.data) + len(data) <= _JOINED
        if last is not None and not last.beside and (small or isinstance(last.data, bytearray)):
            last.data += data
        else:
            self._pieces.append(_Piece(data, ()))

    def flush(self) -> bool:
        """Sends what the socket takes now; returns whether that was everything. Raises OSError."""
        while self._pieces:
            piece = self._pieces[0]
            try:
                sent = self._send(piece)
            except BlockingIOError:
                return False
            close_all(piece.beside)
            piece.beside = ()
            if sent == len(piece.data):
                self._pieces.popleft()
            elif isinstance(piece.data, bytearray):
                del piece.data[:sent]
            else:
                piece.data = bytearray(memoryview(piece.data)[sent:])
        return True

    def drop(self) -> None:
        for piece in self._pieces:
            close_all(piece.beside)
        self._pieces.clear()

    def _send(self, piece: _Piece) -> int:
        return send_some(self._sock, piece.data, [sock.fileno() for sock in piece.beside])


class Channel:
    """Sends and receives frames on a connected Unix socket in an asyncio loop.

    ``on_frame`` gets header, body and descriptors of each frame; the descriptors are then its own. ``on_lost`` is
    called once, when the other end is gone or breaks the form of frames."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        on_frame: Callable[[Header, bytes, list[int]], None],
        on_lost: Callable[[], None],
        max_header: int = MAX_HEADER,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._loop = loop
        self._reader = FrameReader(max_header)
        self._out = Outbox(sock)
        self._retry: asyncio.TimerHandle | None = None
        self._waits = False
        """Whether the socket is watched for room to write."""
        self.alive = True
        self._loop.add_reader(sock.fileno(), self._readable)

    @property
    def behind(self) -> bool:
        """Whether sent frames have not left yet."""
        return bool(self._out)

    def send(self, header: Header, body: bytes = b"", sockets: Sequence[Given] = ()) -> None:
        """Sends a frame.

        ``sockets`` are given away: closed here once they are sent, or never will be."""
        if not self.alive:
            close_all(sockets)
            return
        data, idle = encode(header, body, len(sockets)), not self._out
        if idle and not sockets:
            # Most frames leave at once, and never wait in the outbox.
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._lose()
                return
            if sent == len(data):
                return
            data = data[sent:]
        self._out.put(data, sockets)
        if idle:
            self._flush()

    def close(self) -> None:
        """Closes the socket without calling ``on_lost``. Idempotent."""
        if not self.alive:
            return
        self.alive = False
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        if self._retry is not None:
            self._retry.cancel()
        self._out.drop()
        self._reader.close()
        self._sock.close()

    def _flush(self) -> None:
        try:
            waits = not self._out.flush()
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                self._lose()
                return
            waits = False
            self._retry = self._loop.call_later(CROWDED_S, self._flush)
        if waits != self._waits:
            self._waits = waits
            if waits:
                self._loop.add_writer(self._sock.fileno(), self._flush)
            else:
                self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        try:
            data, beside, flags, _ = self._sock.recvmsg(_READ, BESIDE, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._lose()
            return
        self._reader.feed(data, descriptors(beside) if beside else ())
        # Truncated: the process has no room for the descriptors, and can no longer tell which frame they belong to.
        if not data or flags & _TRUNCATED:
            self._lose()
            return
        frames: list[Frame] = []
        broken = False
        try:
            while (frame := self._reader.next()) is not None:
                frames.append(frame)
        except BadMessage:
            broken = True
        for header, body, received in frames:
            if not self.alive:  # the frame before was its last
                for fd in received:
                    os.close(fd)
                continue
            try:
                self._on_frame(header, body, received)
            except Exception as error:  # noqa: BLE001 - reported; the next frames are taken all the same
                self._loop.call_exception_handler({"message": "a frame could not be taken", "exception": error})
        if broken:
            self._lose()

    def _lose(self) -> None:
        if self.alive:
            self.close()
            self._on_lost()
