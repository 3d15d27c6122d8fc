"""The frames of the guest's channel (see :mod:`skillyard.guest`), read in the plainest way.

The server's reader is another one: a check that used it would not notice a mistake that both share.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

from skillyard.testing.sandbox_suite.check import Failed


@dataclass(frozen=True, slots=True)
class Frame:
    kind: str
    payload: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.payload)


def frames(channel: bytes) -> list[Frame]:
    """Raises Failed for what is no whole sequence of frames."""
    found, at = [], 0
    while at < len(channel):
        if len(channel) - at < 5:
            raise Failed(f"the channel ends within a frame's head: {channel[at:]!r}")
        kind, size = struct.unpack_from(">cI", channel, at)
        at += 5 + size
        if at > len(channel):
            raise Failed(f"the channel ends within a frame of {size} bytes")
        found.append(Frame(kind.decode("latin-1"), channel[at - size : at]))
    return found


def last(channel: bytes, kind: str) -> Any:
    """The value of the last frame, which is of ``kind``."""
    found = frames(channel)
    if not found or found[-1].kind != kind:
        raise Failed(f"the last frame is {kind}; seen: {[(f.kind, f.payload[:300]) for f in found[-3:]]}")
    return found[-1].value


def blobs(channel: bytes) -> dict[int, bytes]:
    """The complete blobs by their number."""
    pieces: dict[int, list[bytes]] = {}
    whole: dict[int, bytes] = {}
    for frame in frames(channel):
        if frame.kind == "B":
            pieces[frame.value["n"]] = []
        elif frame.kind == "D":
            pieces[int.from_bytes(frame.payload[:4], "big")].append(frame.payload[4:])
        elif frame.kind == "E":
            whole[frame.value["n"]] = b"".join(pieces[frame.value["n"]])
    return whole
