"""Extra fields of a zip entry (APPNOTE 4.5, 4.6): sizes in 64 bits, a name that must not be another, encryption."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from skillyard.stores.archives import ArchiveRefused

_ZIP64, _UNICODE_PATH = 0x0001, 0x7075
_ENCRYPTION = {0x0017, 0x9901}
_ELSEWHERE = 0xFFFFFFFF
_LARGEST = 1 << 40


class Sizes(NamedTuple):
    """``offset`` is None where there is none to be had: in a local header."""

    size: int
    packed: int
    offset: int | None = None


def read_extra(extra: bytes, name: bytes, sizes: Sizes) -> Sizes:
    """``sizes`` with those that stand in the zip64 field (4.5.3). Raises ArchiveRefused."""
    seen: set[int] = set()
    wide: bytes | None = None
    for kind, value in _fields(extra, name):
        if kind in seen:
            raise ArchiveRefused("archive-header", name, "has the same extra field twice")
        seen.add(kind)
        if kind in _ENCRYPTION:
            raise ArchiveRefused("archive-encrypted", name, "is encrypted")
        if kind == _UNICODE_PATH and value[5:] != name:
            raise ArchiveRefused("archive-mismatch", name, "has another name in an extra field")
        wide = value if kind == _ZIP64 else wide
    return _widened(sizes, wide, name)


def _fields(extra: bytes, name: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(extra):
        kind, length = struct.unpack_from("<HH", extra, at) if len(extra) - at >= 4 else (0, len(extra))
        value = extra[at + 4 : at + 4 + length]
        if len(value) != length:
            raise ArchiveRefused("archive-header", name, "has an extra field that is cut off")
        yield kind, value
        at += 4 + length


def _widened(sizes: Sizes, wide: bytes | None, name: bytes) -> Sizes:
    asked = [field for field in sizes._fields if getattr(sizes, field) == _ELSEWHERE]
    if not asked:
        return sizes
    if wide is None or len(wide) < 8 * len(asked):
        raise ArchiveRefused("archive-header", name, "says that its sizes stand elsewhere, and they do not")
    values = struct.unpack_from(f"<{len(asked)}Q", wide)
    if any(value > _LARGEST for value in values):
        raise ArchiveRefused("archive-header", name, "has sizes that nothing has")
    return sizes._replace(**dict(zip(asked, values, strict=True)))
