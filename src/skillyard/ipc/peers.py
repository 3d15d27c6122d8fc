"""The process at the other end of a Unix socket, as the kernel knows it (SO_PEERCRED)."""

from __future__ import annotations

import socket
import struct

_CREDENTIALS = struct.Struct("3i")


def peer(sock: socket.socket) -> tuple[int, int]:
    """Returns the peer's pid, 0 where our pid namespace has none for it, and its user."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid
