"""What is yet to be sent on a stream, and the sockets that travel beside it (unix(7), SCM_RIGHTS)."""

from __future__ import annotations

import array
import socket
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

AT_ONCE = 250
"""Sockets beside one piece: the kernel takes 253 (SCM_MAX_FD)."""


@dataclass(slots=True)
class _Piece:
    data: bytes | bytearray
    beside: Sequence[socket.socket]


class Outbox:
    """Of a non-blocking socket. Sockets that were put are closed here, sent or not."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pieces: deque[_Piece] = deque()

    def put(self, data: bytes, sockets: Sequence[socket.socket] = ()) -> None:
        """``sockets`` arrive with the first bytes of ``data``."""
        for first in range(0, len(sockets), AT_ONCE):
            self._pieces.append(_Piece(data[:1], sockets[first : first + AT_ONCE]))
            data = data[1:]
        last = self._pieces[-1] if self._pieces else None
        if last is not None and not last.beside and isinstance(last.data, bytearray):
            last.data += data
        else:
            self._pieces.append(_Piece(data, ()))

    def flush(self) -> bool:
        """Whether all is sent. Raises OSError when nobody reads it any more."""
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
        if not piece.beside:
            return self._sock.send(piece.data)
        rights = array.array("i", [sock.fileno() for sock in piece.beside])
        return self._sock.sendmsg([piece.data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def close_all(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
