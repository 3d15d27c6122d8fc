"""The strict reader of messages from processes that may be hostile.

Foreign packages, programs or servers have been in them. The reader bounds the length first, then asks for an object,
and closes descriptors that are not expected. Its caller holds the fields to their forms.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from skillyard.ipc import packets


class BadMessage(ValueError):
    """A message that breaks the rules; the text is one sentence about it."""


def read_object(raw: bytes | bytearray, most: int) -> dict[str, Any]:
    """Returns a JSON object. Raises BadMessage for anything else, and nothing else."""
    if len(raw) > most:
        raise BadMessage(f"its message has more than {most} bytes")
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise BadMessage("its message is not JSON") from None
    if not isinstance(value, dict):
        raise BadMessage("its message is not an object")
    return value


def receive(sock: socket.socket, most: int, fds: int) -> tuple[dict[str, Any], list[int]] | None:
    """Returns the next packet's object and at most ``fds`` descriptors; None at the end.

    Raises BlockingIOError when there is none yet, OSError, and BadMessage."""
    got = packets.receive_raw(sock)
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
