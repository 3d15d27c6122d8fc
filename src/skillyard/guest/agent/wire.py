"""Frames of the agent's channel, as both of its ends read and write them."""

from __future__ import annotations

import struct
from _operator import _compare_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from hashlib import blake2b
else:
    from _blake2 import blake2b  # hashlib loads OpenSSL, which takes an agent as long as all its other modules

VERSIONS = (1, 2, 3, 4)
"""Version 2 has the operations `listen` and `accept`, version 3 `terminal` and `resize`, and proofs by BLAKE2b, and
version 4 `follow`."""
WITH_A_WAY_OUT, WITH_BLAKE, WITH_FOLLOWING = 2, 3, 4
HELLO, OPEN, DATA, END, CREDIT, CANCEL, REPLY, FAIL = b"HODEWCRF"
PIECE = 64 * 1024
"""The most bytes of one frame of data."""
WINDOW = 256 * 1024
"""The credit of both sides when an exchange begins."""
EXCHANGES = 512
"""How many may be open on one channel."""
_HEAD = struct.Struct(">BII")
_NUMBER = struct.Struct(">I")
MOST_CREDIT = 1 << 30
LEAST_WINDOW = 4096

TO_AGENT = {HELLO: 4096, OPEN: 4 << 20, DATA: PIECE, END: 0, CREDIT: 4, CANCEL: 0}
FROM_AGENT = {HELLO: 4096, DATA: PIECE, END: 0, CREDIT: 4, REPLY: 64 * 1024, FAIL: 8192}
"""The largest payload of each type of frame, by direction. Other types are faults."""


class BadFrame(Exception):
    """The other side breaks the protocol; the channel is of no use any more."""


def pack(kind: int, exchange: int, payload: bytes | memoryview = b"") -> bytes:
    return b"".join((_HEAD.pack(kind, exchange, len(payload)), payload))


def credit(exchange: int, size: int) -> bytes:
    return pack(CREDIT, exchange, _NUMBER.pack(size))


def credit_of(payload: bytes) -> int:
    """Returns the size that a frame of credit gives. Raises BadFrame."""
    if len(payload) != _NUMBER.size:
        raise BadFrame("credit is four bytes")
    return int(_NUMBER.unpack(payload)[0])


class Parser:
    """Divides the bytes of a channel into frames. It keeps less than one frame."""

    def __init__(self, largest: Mapping[int, int]) -> None:
        self._largest = largest
        self._held = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Returns the frames that ``data`` completes: type, exchange, payload. Raises BadFrame."""
        self._held += data
        frames = []
        at, end = 0, len(self._held)
        while end - at >= _HEAD.size:
            kind, exchange, length = _HEAD.unpack_from(self._held, at)
            if length > self._largest.get(kind, -1):
                raise BadFrame(f"a frame of type {kind} with {length} bytes")
            begin = at + _HEAD.size
            if end - begin < length:
                break
            at = begin + length
            frames.append((kind, exchange, bytes(self._held[begin:at])))
        if at:
            del self._held[:at]
        return frames


def prove(key: bytes, side: str, host_nonce: str, agent_nonce: str, version: int) -> str:
    """Returns the proof that ``side`` (``host`` or ``agent``) knows the key."""
    text = "\0".join(("skillyard agent", side, host_nonce, agent_nonce)).encode()
    if version >= WITH_BLAKE:
        return blake2b(text, key=key, digest_size=32).hexdigest()
    import hmac

    return hmac.new(key, text, "sha256").hexdigest()


def is_proof(said: object, key: bytes, side: str, host_nonce: str, agent_nonce: str, version: int) -> bool:
    wanted = prove(key, side, host_nonce, agent_nonce, version)
    return isinstance(said, str) and _compare_digest(said.encode("utf-8", "replace"), wanted.encode())
