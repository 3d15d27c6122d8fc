"""Archives of which much more would come out than goes in."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.stores.archives.tars import gzipped, member, pax, record, repeated, tar
from tests.unit.stores.archives.zips import Entry, make_zip, patched

MIB = 1024 * 1024

BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "bomb: tar with a large file": ("archive-bytes", lambda: tar(member(b"x", size=17 * MIB))),
    "bomb: tar with a file of 8 GiB": ("archive-bytes", lambda: tar(member(b"x", size=8 * 1024**3 - 1))),
    "bomb: tar with many files": ("archive-files", lambda: tar(*(member(b"%d" % i) for i in range(512)))),
    "bomb: tar with many directories": (
        "archive-entries",
        lambda: tar(*(member(b"%d/" % i, kind=b"5") for i in range(2049))),
    ),
    "bomb: tar with directories in directories": (
        "archive-entries",
        lambda: tar(*(member(b"%d/" % i + b"d/" * 15, kind=b"5") for i in range(200))),
    ),
    "bomb: tar.gz of nothing but headers": (
        "archive-entries",
        lambda: repeated(b"", member(b".git/x") * 64, 160_000),
    ),
    "bomb: tar.gz by ratio": (
        "archive-ratio",
        lambda: gzipped(tar(member(b".git/x", bytes(20 * MIB)))),
    ),
    "bomb: tar.gz of 4 GiB of zeros": (
        "archive-bytes",
        lambda: repeated(member(b".git/x", size=8 * 1024**3 - 1), bytes(MIB), 4096),
    ),
    "bomb: gzip of 4 GiB of zeros": ("archive-format", lambda: repeated(b"", bytes(MIB), 4096)),
    "bomb: tar.gz with much that is left out": (
        "archive-bytes",
        lambda: repeated(member(b".git/x", size=1024**3), _noise() + bytes(MIB // 4), 300),
    ),
    "bomb: extended headers": (
        "archive-bytes",
        lambda: repeated(b"", pax(record(b"comment", b"x" * 60_000)) + member(b".git/x"), 8000),
    ),
    "bomb: zip by ratio": ("archive-ratio", lambda: make_zip(Entry(b"x", bytes(15 * MIB)))),
    "bomb: zip with a large file": (
        "archive-bytes",
        lambda: make_zip(Entry(b"x", bytes(17 * MIB)), Entry(b".git/noise", _noise() * 4, method=0)),
    ),
    "bomb: zip of 60,000 entries": (
        "archive-entries",
        lambda: patched(make_zip(), b"PK\x05\x06", 8, b"\x60\xea\x60\xea"),
    ),
    "bomb: zip with a huge directory": ("archive-entries", lambda: _wide_directory()),
    "bomb: zip with many files": ("archive-files", lambda: make_zip(*(Entry(b"%d" % i) for i in range(512)))),
    "bomb: zip whose entries share one content": ("archive-overlap", lambda: _shared()),
}


def _noise() -> bytes:
    """64 KiB of which deflate saves little."""
    state, out = 1, bytearray()
    for _ in range(16 * 1024):
        state = (state * 1103515245 + 12345) & 0xFFFFFFFF
        out += state.to_bytes(4, "big")[:2] + b"\0\0"
    return bytes(out)


def _wide_directory() -> bytes:
    entries = [Entry(b"%d" % i, central={"extra": b"\x55\x54\xf8\xff" + bytes(65528)}) for i in range(70)]
    return make_zip(*entries)


def _shared() -> bytes:
    """As in "A better zip bomb" (Fifield, WOOT 2019), in its plainest form."""
    return make_zip(*(Entry(b"%d" % i, b"z" * 30_000, body=b"", central={"offset": 0}) for i in range(100)))
