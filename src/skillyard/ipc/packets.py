"""Packets between keeper, zygote and init, over SOCK_SEQPACKET.

Each is one JSON object, perhaps with descriptors. This module is shown inside sandboxes: it imports nothing of ours.
"""

from __future__ import annotations

import array
import json
import os
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

MAX_PACKET = 192 * 1024
_MAX_FDS = 16
_INT = array.array("i").itemsize
_FDS_SPACE = socket.CMSG_SPACE(_MAX_FDS * _INT)

to_json = json.JSONEncoder(separators=(",", ":")).encode
"""Compact JSON. json.dumps would make an encoder for each message."""


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Sends a message.

    Raises ValueError for one that no packet holds, OSError when the other end is gone."""
    send_raw(sock, to_json(message).encode(), fds)


def send_raw(sock: socket.socket, raw: bytes, fds: Sequence[int] = ()) -> None:
    if len(raw) > MAX_PACKET:
        raise ValueError(f"message of {len(raw)} bytes; at most {MAX_PACKET} fit")
    send_some(sock, raw, fds)


def send_some(sock: socket.socket, data: bytes | bytearray, fds: Sequence[int]) -> int:
    """Sends ``data`` with descriptors beside its first byte; returns how many bytes were taken."""
    if not fds:
        return sock.send(data)
    return sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Returns the keeper's next message and its descriptors (close-on-exec), None at the end."""
    got = receive_raw(sock)
    return None if got is None else (json.loads(got[0]), got[1])


def receive_raw(sock: socket.socket) -> tuple[bytes, list[int]] | None:
    """Returns the next packet unread, for another process or a strict reader."""
    raw, ancillary, _, _ = sock.recvmsg(MAX_PACKET, _FDS_SPACE, socket.MSG_CMSG_CLOEXEC)
    fds = descriptors(ancillary)
    if not raw:
        for fd in fds:
            os.close(fd)
        return None
    return raw, fds


def descriptors(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    """Returns the descriptors that recvmsg(2) gave beside the bytes."""
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % _INT])
    return found.tolist()
