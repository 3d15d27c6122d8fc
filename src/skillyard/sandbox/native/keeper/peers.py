"""Who is at the other end of a Unix socket, as the kernel knows (unix(7), SO_PEERCRED)."""

from __future__ import annotations

import socket
import struct

_CREDENTIALS = struct.Struct("3i")


def peer(sock: socket.socket) -> tuple[int, int]:
    """Its pid, 0 where our pid namespace has none for it, and its user, as ours knows both."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid
