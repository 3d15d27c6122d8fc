"""The short form of a log: its first 512 bytes, a marker, its end (skills-protocol §4, rows 4 and 9)."""

from __future__ import annotations

from skillyard.engine.runs.text import cut_head, cut_tail

MAX = 2048
HEAD = 512


class Preview:
    """Fed with a log piece by piece; keeps what :meth:`text` needs and no more."""

    __slots__ = ("_head", "_tail", "size")

    def __init__(self) -> None:
        self.size = 0
        self._head = b""
        self._tail = b""

    def feed(self, data: bytes) -> None:
        self.size += len(data)
        if len(self._head) < MAX:
            self._head = (self._head + data)[:MAX]
        self._tail = data[-MAX:] if len(data) >= MAX else (self._tail + data)[-MAX:]

    def text(self) -> str:
        """At most 2,048 bytes of UTF-8; bytes that are none show as U+FFFD."""
        whole = _valid(self._head)
        if self.size <= MAX and len(whole) <= MAX:
            return whole.decode()
        head = cut_head(whole[:HEAD])
        room = MAX - HEAD - len(_marker(self.size))
        tail = cut_tail(_valid(cut_tail(self._tail))[-room:])
        left_out = max(0, self.size - len(head) - len(tail))
        return (head + _marker(left_out) + tail).decode()


def _valid(data: bytes) -> bytes:
    return data.decode("utf-8", "replace").encode()


def _marker(left_out: int) -> bytes:
    return f"\n[... {left_out} bytes left out ...]\n".encode()
