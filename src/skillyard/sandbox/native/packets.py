"""Messages with descriptors between keeper, zygote and init: one JSON object a packet, over SOCK_SEQPACKET."""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

MAX_PACKET = 192 * 1024
_MAX_FDS = 16
_FDS_SPACE = socket.CMSG_SPACE(_MAX_FDS * 4)
_INT = array.array("i").itemsize


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Raises ValueError for a message that no packet holds, OSError when the other end is gone."""
    send_raw(sock, json.dumps(message, separators=(",", ":")).encode(), fds)


def send_raw(sock: socket.socket, raw: bytes, fds: Sequence[int] = ()) -> None:
    if len(raw) > MAX_PACKET:
        raise ValueError(f"message of {len(raw)} bytes; at most {MAX_PACKET} fit")
    if fds:
        sock.sendmsg([raw], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
    else:
        sock.send(raw)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and its descriptors (close-on-exec), None at the end."""
    got = receive_raw(sock)
    return None if got is None else (json.loads(got[0]), got[1])


def receive_raw(sock: socket.socket) -> tuple[bytes, list[int]] | None:
    """:func:`receive` without reading the message: that is for another process."""
    raw, ancillary, _, _ = sock.recvmsg(MAX_PACKET, _FDS_SPACE, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            got = array.array("i")
            got.frombytes(data[: len(data) - len(data) % _INT])
            fds.extend(got)
    if not raw:
        for fd in fds:
            os.close(fd)
        return None
    return raw, fds
