"""Tar archives block by block, right or wrong."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable

POSIX, GNU = b"ustar\x0000", b"ustar  \0"
END = bytes(1024)


def member(
    name: bytes,
    data: bytes = b"",
    *,
    kind: bytes = b"0",
    mode: bytes = b"0000644",
    size: bytes | int | None = None,
    link: bytes = b"",
    prefix: bytes = b"",
    magic: bytes = POSIX,
    checksum: int | None = None,
) -> bytes:
    """A header, the content and its padding. ``size`` as bytes is the field itself."""
    field = size if isinstance(size, bytes) else b"%011o" % (len(data) if size is None else size)
    block = b"".join(
        (
            name[:100].ljust(100, b"\0"),
            mode.ljust(8, b"\0"),
            b"0000000\0" * 2,
            field.ljust(12, b"\0"),
            b"00000000000\0",
            b" " * 8,
            kind,
            link.ljust(100, b"\0"),
            magic,
            bytes(32 + 32 + 16),
            prefix.ljust(155, b"\0"),
        )
    ).ljust(512, b"\0")
    return sealed(block, checksum) + data + bytes(-len(data) % 512)


def sealed(block: bytes, checksum: int | None = None) -> bytes:
    """A header block with the check sum that it should have, or another."""
    blank = block[:148] + b" " * 8 + block[156:]
    return block[:148] + b"%06o\0 " % (sum(blank) if checksum is None else checksum) + block[156:]


def pax(*records: bytes, kind: bytes = b"x", size: int | None = None) -> bytes:
    return member(b"PaxHeaders/0", b"".join(records), kind=kind, size=size)


def record(key: bytes, value: bytes) -> bytes:
    """``LENGTH KEY=VALUE``, where the length counts itself."""
    bare = len(key) + len(value) + 3
    length = bare + len(str(bare))
    length += len(str(length)) - len(str(bare))
    return b"%d %s=%s\n" % (length, key, value)


def tar(*members: bytes) -> bytes:
    """With a SKILL.md in front and the end behind."""
    return member(b"SKILL.md", b"hello") + b"".join(members) + END


def gzipped(raw: bytes) -> bytes:
    return gzip.compress(raw, mtime=0)


def repeated(head: bytes, unit: bytes, times: int) -> bytes:
    """A gzip stream of ``head`` and ``times`` copies of ``unit``, made without unpacking it anywhere; it has no end."""
    compress = zlib.compressobj(9, zlib.DEFLATED, 31)
    start = compress.compress(head) + compress.flush(zlib.Z_FULL_FLUSH)
    piece = compress.compress(unit) + compress.flush(zlib.Z_FULL_FLUSH)
    return start + piece * times


def joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(parts)
