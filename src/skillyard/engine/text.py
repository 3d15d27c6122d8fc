"""Bytes shown as text: cut on UTF-8 boundaries, or as base64 when they are not valid UTF-8."""

from __future__ import annotations

import base64
from collections.abc import Callable

TEXT_KINDS = frozenset(
    {
        "application/json",
        "application/ld+json",
        "application/javascript",
        "application/sql",
        "application/toml",
        "application/x-ndjson",
        "application/x-sh",
        "application/x-yaml",
        "application/xml",
        "application/yaml",
    }
)


def is_text(kind: str) -> bool:
    """Returns whether a MIME type names text that we show as text."""
    name = kind.partition(";")[0].strip().lower()
    return name.startswith("text/") or name in TEXT_KINDS or name.endswith(("+json", "+xml"))


def cut_head(data: bytes) -> bytes:
    """Without the incomplete UTF-8 sequence that a cut left at the end, if there is one."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return data
        if byte >= 0xC0:
            return data if back >= _length(byte) else data[:-back]
    return data


def cut_tail(data: bytes) -> bytes:
    """Without the rest of a UTF-8 sequence that a cut left at the start, if there is one."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def _length(lead: int) -> int:
    return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def show(data: bytes, *, text: bool = True) -> tuple[str, str]:
    """``(content, encoding)``: UTF-8 when ``text`` and it decodes, base64 otherwise."""
    if text:
        try:
            return data.decode(), "utf-8"
        except UnicodeDecodeError:
            pass
    return base64.b64encode(data).decode(), "base64"


def clean(text: str) -> str:
    """Returns text that can be encoded: every lone surrogate becomes ``?``."""
    return text.encode("utf-8", "replace").decode()


def first(most: int) -> Callable[[str], str]:
    """Keeps the first ``most`` characters."""
    return lambda text: text[:most]


def ends(most: int, tail: int) -> Callable[[str], str]:
    """Keeps ``most`` characters, ``tail`` of them from the end."""
    return lambda text: text if len(text) <= most else f"{text[: most - tail - 3]} … {text[-tail:]}"


def lines(max_bytes: int, head: int) -> Callable[[str], str]:
    """Returns ``max_bytes`` of UTF-8 of a text's beginning and end.

    The beginning has whole lines, ``head`` bytes at most.
    """

    def keep(text: str) -> str:
        data = text.encode("utf-8", "replace")
        if len(data) <= max_bytes:
            return data.decode()
        begin = data[: data.rfind(b"\n", 0, head) + 1] + b"  ...\n"
        end = data[len(begin) - max_bytes :]
        return (begin + cut_tail(end[end.find(b"\n") + 1 :])).decode("utf-8", "replace")

    return keep


def shorten(text: str, max_bytes: int) -> str:
    """At most ``max_bytes`` of UTF-8, cut on a character boundary."""
    data = text.encode("utf-8", "replace")
    return data.decode() if len(data) <= max_bytes else cut_head(data[:max_bytes]).decode()
