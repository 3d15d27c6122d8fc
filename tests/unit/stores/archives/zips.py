"""Zip archives record by record, right or wrong."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

UTF8, DESCRIPTOR = 1 << 11, 1 << 3


@dataclass
class Entry:
    """``local`` and ``central`` replace fields of one header alone: name, flags, method, crc, packed, size, offset,
    extra, disk."""

    name: bytes
    data: bytes = b""
    method: int = 8
    flags: int = 0
    mode: int = 0o100644
    extra: bytes = b""
    body: bytes | None = None
    after: bytes = b""
    local: dict[str, Any] = field(default_factory=dict)
    central: dict[str, Any] = field(default_factory=dict)

    @property
    def packed(self) -> bytes:
        if self.body is not None:
            return self.body
        return deflated(self.data) if self.method == 8 else self.data

    def fields(self, offset: int, changed: dict[str, Any]) -> dict[str, Any]:
        plain = {
            "name": self.name,
            "flags": self.flags,
            "method": self.method,
            "crc": zlib.crc32(self.data),
            "packed": len(self.packed),
            "size": len(self.data),
            "offset": offset,
            "extra": self.extra,
            "disk": 0,
        }
        return {**plain, **changed}

    def local_header(self) -> bytes:
        told = self.fields(0, self.local)
        fixed = struct.pack(
            "<4s5H3L2H",
            *(b"PK\x03\x04", 20, told["flags"], told["method"], 0, 0x21),
            *(told["crc"], told["packed"], told["size"], len(told["name"]), len(told["extra"])),
        )
        return fixed + bytes(told["name"]) + bytes(told["extra"])

    def central_header(self, offset: int) -> bytes:
        told = self.fields(offset, self.central)
        fixed = struct.pack(
            "<4s6H3L5H2L",
            *(b"PK\x01\x02", 3 << 8 | 20, 20, told["flags"], told["method"], 0, 0x21),
            *(told["crc"], told["packed"], told["size"], len(told["name"]), len(told["extra"])),
            *(0, told["disk"], 0, self.mode << 16, told["offset"]),
        )
        return fixed + bytes(told["name"]) + bytes(told["extra"])


def deflated(data: bytes) -> bytes:
    compress = zlib.compressobj(9, zlib.DEFLATED, -15)
    return compress.compress(data) + compress.flush()


def descriptor(data: bytes, packed: int, *, mark: bool = True, wide: bool = False) -> bytes:
    body = struct.pack("<L2Q" if wide else "<3L", zlib.crc32(data), packed, len(data))
    return (b"PK\x07\x08" if mark else b"") + body


def streamed(name: bytes, data: bytes, *, mark: bool = True, wide: bool = False) -> Entry:
    """An entry whose sizes stand behind its content."""
    packed = len(deflated(data))
    nothing = {"crc": 0, "packed": 0, "size": 0}
    after = descriptor(data, packed, mark=mark, wide=wide)
    return Entry(name, data, flags=DESCRIPTOR, local=nothing, after=after)


def make_zip(
    *entries: Entry,
    skill: bool = True,
    before: bytes = b"",
    gap: bytes = b"",
    comment: bytes = b"",
    end: dict[str, int] | None = None,
    shifted: bool = False,
) -> bytes:
    """With a SKILL.md in front. ``gap`` stands before the directory; ``end`` replaces fields of the last record: disk,
    here, entries, size, offset, comment; ``shifted`` makes offsets count from behind ``before``."""
    content, directory = b"", b""
    listed = [Entry(b"SKILL.md", b"hello"), *entries] if skill else list(entries)
    base = 0 if shifted else len(before)
    for entry in listed:
        directory += entry.central_header(base + len(content))
        content += entry.local_header() + entry.packed + entry.after
    told = {
        "disk": 0,
        "here": len(listed),
        "entries": len(listed),
        "size": len(directory),
        "offset": base + len(content) + len(gap),
        "comment": len(comment),
        **(end or {}),
    }
    last = struct.pack(
        "<4s4H2LH", b"PK\x05\x06", told["disk"], 0, *(told[k] for k in ("here", "entries", "size", "offset", "comment"))
    )
    return before + content + gap + directory + last + comment


def patched(raw: bytes, mark: bytes, offset: int, value: bytes) -> bytes:
    at = raw.index(mark) + offset
    return raw[:at] + value + raw[at + len(value) :]
