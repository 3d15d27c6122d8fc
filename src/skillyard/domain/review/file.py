"""A file as a review sees it: its bytes, and its text when they are text."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import field
from functools import cached_property
from itertools import islice

from skillyard.values import dataclass

MOST_TEXT = 1024 * 1024
"""Bytes of one file that are read as text; a longer one is read up to here, and that is said."""

MOST_MATCHES = 1000

_BOMS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


@dataclass(frozen=True)
class File:
    """``path`` is relative to the bundle's root, with ``/``."""

    path: str
    data: bytes = field(repr=False)
    executable: bool = False

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """Lower case, with its dot; empty for none."""
        stem, dot, end = self.name.rpartition(".")
        return f".{end.lower()}" if dot and stem else ""

    @cached_property
    def encoding(self) -> str:
        """Returns the encoding; ``latin-1`` for odd bytes that look like text, empty for others."""
        head = self.data[:MOST_TEXT]
        for mark, name in _BOMS:
            if head.startswith(mark):
                return name
        if b"\0" in head:
            return ""
        try:
            head.decode()
        except UnicodeDecodeError as error:
            if error.start >= len(head) - 4 and len(head) == MOST_TEXT:
                return "utf-8"  # the cut went through a character
            return "latin-1" if _mostly_printable(head[:4096]) else ""
        return "utf-8"

    @cached_property
    def text(self) -> Text | None:
        """The text; None when the bytes are not text."""
        return Text(self.data[:MOST_TEXT].decode(self.encoding, "replace")) if self.encoding else None

    @property
    def cut(self) -> bool:
        """Returns whether the text is only the beginning."""
        return bool(self.encoding) and len(self.data) > MOST_TEXT


class Text(str):
    """Text that knows its lines."""

    def all(self, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        """Yields the first thousand matches of a pattern whose every match becomes a finding."""
        return islice(pattern.finditer(self), MOST_MATCHES)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer("\n", self))]

    def line_of(self, offset: int) -> int:
        """Returns the line, from 1, of the character at ``offset``."""
        return bisect_right(self._starts, offset)

    def first_line_with(self, *needles: str) -> int:
        """Returns the line of the first needle that is found; 0 when none is.

        A needle that begins with a line break has to begin a line.
        """
        for needle in needles:
            at = self.find(needle) if needle else -1
            if at >= 0:
                return self.line_of(at + needle.startswith("\n"))
        return 0

    def numbered(self) -> Iterator[tuple[int, str]]:
        yield from enumerate(self.split("\n"), 1)


def _mostly_printable(head: bytes) -> bool:
    odd = sum(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in head)
    return odd * 50 <= len(head)
