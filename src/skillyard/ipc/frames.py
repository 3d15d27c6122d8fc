"""Frames of a byte stream: a JSON object, raw bytes, and sockets that travel beside them.

A frame is two big-endian 32-bit lengths, the object, the bytes. Sockets come beside the first bytes of a frame
(unix(7), SCM_RIGHTS), whose object says by ``sockets`` how many.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from skillyard.ipc.packets import send_some
from skillyard.ipc.strict import BadMessage, read_object

HEAD = struct.Struct(">II")
MAX_HEADER = 4 * 1024 * 1024
MAX_BODY = 256 * 1024 * 1024
AT_ONCE = 250
"""Sockets beside one piece: the kernel takes 253 (SCM_MAX_FD)."""
MOST_WAITING = 1024
"""Descriptors that came before the frame that names them is whole."""
BESIDE = socket.CMSG_SPACE(253 * 4)
"""Room for all that the kernel puts beside one piece."""

Header = dict[str, Any]
Frame = tuple[Header, bytes, list[int]]


def encode(header: Header, body: bytes = b"", sockets: int = 0) -> bytes:
    if sockets:
        header = {**header, "sockets": sockets}
    raw = json.dumps(header, separators=(",", ":")).encode()
    return b"".join((HEAD.pack(len(raw), len(body)), raw, body))


def close_all(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


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
    beside: Sequence[socket.socket]


class Outbox:
    """Bytes that a non-blocking socket has yet to send, and the sockets beside them.

    Sockets are closed here when they are sent and when they are dropped."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pieces: deque[_Piece] = deque()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def put(self, data: bytes, sockets: Sequence[socket.socket] = ()) -> None:
        """Adds ``data``; ``sockets`` arrive with its first bytes."""
        for first in range(0, len(sockets), AT_ONCE):
            self._pieces.append(_Piece(data[:1], sockets[first : first + AT_ONCE]))
            data = data[1:]
        last = self._pieces[-1] if self._pieces else None
        if last is not None and not last.beside and isinstance(last.data, bytearray):
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
