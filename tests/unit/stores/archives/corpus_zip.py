"""Attacks that are zip archives."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.stores.archives.zips import DESCRIPTOR, Entry, deflated, descriptor, make_zip, patched

_WIDE = 0xFFFFFFFF
ZIP: dict[str, tuple[str, Callable[[], bytes]]] = {
    "zip: symbolic link": ("archive-link", lambda: make_zip(Entry(b"x", b"/etc/passwd", mode=0o120777))),
    "zip: FIFO": ("archive-special", lambda: make_zip(Entry(b"x", mode=0o010644))),
    "zip: device": ("archive-special", lambda: make_zip(Entry(b"x", mode=0o020644))),
    "zip: unknown kind": ("archive-special", lambda: make_zip(Entry(b"x", mode=0o170644))),
    "zip: no name": ("archive-name", lambda: make_zip(Entry(b"", b"x"))),
    "zip: NUL": ("archive-name", lambda: make_zip(Entry(b"SKILL2.md\0.exe", b"x"))),
    "zip: directory by its mode": ("archive-header", lambda: make_zip(Entry(b"x", mode=0o040755))),
    "zip: directory by its name": ("archive-header", lambda: make_zip(Entry(b"x/", mode=0o100644))),
    "zip: directory with content": ("archive-header", lambda: make_zip(Entry(b"x/", b"y", mode=0o040755))),
    "zip: encrypted": ("archive-encrypted", lambda: make_zip(Entry(b"x", b"y", flags=1))),
    "zip: strong encryption": ("archive-encrypted", lambda: make_zip(Entry(b"x", b"y", flags=1 << 6))),
    "zip: masked headers": ("archive-encrypted", lambda: make_zip(Entry(b"x", b"y", flags=1 << 13))),
    "zip: AES": ("archive-encrypted", lambda: make_zip(Entry(b"x", b"y", method=99))),
    "zip: AES by extra field": ("archive-encrypted", lambda: make_zip(Entry(b"x", b"y", extra=b"\x01\x99\x00\x00"))),
    "zip: encrypted in its own header alone": (
        "archive-mismatch",
        lambda: make_zip(Entry(b"x", b"y", local={"flags": 1})),
    ),
    "zip: patch data": ("archive-header", lambda: make_zip(Entry(b"x", b"y", flags=1 << 5))),
    "zip: of a version that is not": (
        "archive-header",
        lambda: patched(make_zip(), b"PK\x01\x02", 6, b"\x40"),
    ),
    "zip: bzip2": ("archive-method", lambda: make_zip(Entry(b"x", b"y", method=12))),
    "zip: LZMA": ("archive-method", lambda: make_zip(Entry(b"x", b"y", method=14))),
    "zip: zstd": ("archive-method", lambda: make_zip(Entry(b"x", b"y", method=93))),
    "zip: imploded": ("archive-method", lambda: make_zip(Entry(b"x", b"y", method=6))),
    "zip: unknown method": ("archive-method", lambda: make_zip(Entry(b"x", b"y", method=4711))),
    "zip: another name inside": ("archive-mismatch", lambda: make_zip(Entry(b"x", b"y", local={"name": b"../x"}))),
    "zip: another method inside": ("archive-mismatch", lambda: make_zip(Entry(b"x", b"y", local={"method": 0}))),
    "zip: another size inside": ("archive-mismatch", lambda: make_zip(Entry(b"x", b"y", local={"size": 2}))),
    "zip: another packed size inside": ("archive-mismatch", lambda: make_zip(Entry(b"x", b"y", local={"packed": 9}))),
    "zip: another check sum inside": ("archive-mismatch", lambda: make_zip(Entry(b"x", b"y", local={"crc": 9}))),
    "zip: another name in an extra field": (
        "archive-mismatch",
        lambda: make_zip(Entry(b"x", b"y", extra=b"\x75\x70\x09\x00\x01\0\0\0\0evil")),
    ),
    "zip: no header where it should be": (
        "archive-mismatch",
        lambda: b"PK\x03\x05".join(make_zip(Entry(b"x", b"y")).rsplit(b"PK\x03\x04", 1)),
    ),
    "zip: another data descriptor": (
        "archive-mismatch",
        lambda: make_zip(Entry(b"x", b"y", flags=DESCRIPTOR, after=descriptor(b"z", len(deflated(b"y"))))),
    ),
    "zip: no data descriptor": ("archive-trailing", lambda: make_zip(Entry(b"x", b"y", flags=DESCRIPTOR))),
    "zip: an odd data descriptor": (
        "archive-trailing",
        lambda: make_zip(Entry(b"x", b"y", flags=DESCRIPTOR, after=b"evil" * 4)),
    ),
    "zip: a byte between entries": ("archive-trailing", lambda: make_zip(Entry(b"x", b"y", after=b"!"))),
    "zip: an entry that is not listed": (
        "archive-trailing",
        lambda: make_zip(Entry(b"x", b"y", after=Entry(b"evil", b"z").local_header() + deflated(b"z"))),
    ),
    "zip: bytes before the directory": ("archive-trailing", lambda: make_zip(gap=b"evil")),
    "zip: bytes before the first entry": ("archive-trailing", lambda: make_zip(before=b"PK\x03\x04" * 8)),
    "zip: directory that lies elsewhere": ("archive-trailing", lambda: make_zip(end={"offset": 5})),
    "zip: something behind": ("archive-truncated", lambda: make_zip() + b"evil"),
    "zip: two ends": ("archive-header", lambda: make_zip(comment=_end_of_nothing())),
    "zip: cut": ("archive-truncated", lambda: make_zip()[:-5]),
    "zip: cut in half": ("archive-truncated", lambda: make_zip(Entry(b"x", b"y" * 500, method=0))[:300]),
    "zip: directory beyond the end": ("archive-damaged", lambda: make_zip(end={"offset": 10_000})),
    "zip: two entries, one content": (
        "archive-overlap",
        lambda: make_zip(Entry(b"x", b"y"), Entry(b"z", b"y", central={"offset": 0})),
    ),
    "zip: an entry within another": ("archive-overlap", lambda: _nested()),
    "zip: several disks": ("archive-disks", lambda: make_zip(end={"disk": 1})),
    "zip: entries on other disks": ("archive-disks", lambda: make_zip(end={"here": 0})),
    "zip: an entry on another disk": ("archive-disks", lambda: make_zip(Entry(b"x", b"y", central={"disk": 2}))),
    "zip: zip64": ("archive-zip64", lambda: make_zip(end={"offset": _WIDE})),
    "zip: zip64 by count": ("archive-zip64", lambda: make_zip(end={"here": 0xFFFF, "entries": 0xFFFF})),
    "zip: zip64 locator": ("archive-zip64", lambda: _with_locator()),
    "zip: sizes that stand nowhere": ("archive-header", lambda: make_zip(Entry(b"x", b"y", central={"size": _WIDE}))),
    "zip: a zip64 size that lies": (
        "archive-mismatch",
        lambda: make_zip(Entry(b"x", b"y", method=0, extra=_wide(7, 7), central={"size": _WIDE, "packed": _WIDE})),
    ),
    "zip: a zip64 size beyond all": (
        "archive-header",
        lambda: make_zip(Entry(b"x", b"y", extra=_wide(1 << 63), central={"size": _WIDE})),
    ),
    "zip: an extra field twice": (
        "archive-header",
        lambda: make_zip(Entry(b"x", b"y", extra=b"\x55\x54\x01\x00\x00" * 2)),
    ),
    "zip: an extra field cut off": ("archive-header", lambda: make_zip(Entry(b"x", b"y", extra=b"\x55\x54\xff\x00"))),
    "zip: half an extra field": ("archive-header", lambda: make_zip(Entry(b"x", b"y", extra=b"\x55\x54"))),
    "zip: more entries than it says": ("archive-header", lambda: make_zip(Entry(b"x"), end={"here": 1, "entries": 1})),
    "zip: fewer entries than it says": ("archive-header", lambda: make_zip(end={"here": 2, "entries": 2})),
    "zip: stored with two sizes": ("archive-header", lambda: make_zip(Entry(b"x", b"yy", method=0, body=b"y"))),
    "zip: check sum": ("archive-damaged", lambda: make_zip(_told(b"y", crc=1))),
    "zip: longer than it says": ("archive-damaged", lambda: make_zip(_told(b"y" * 9, size=3))),
    "zip: shorter than it says": ("archive-damaged", lambda: make_zip(_told(b"y" * 9, size=30))),
    "zip: no deflate": ("archive-damaged", lambda: make_zip(Entry(b"x", b"y", body=b"\xff\xff\xff"))),
    "zip: deflate cut off": (
        "archive-damaged",
        lambda: make_zip(Entry(b"x", b"y" * 99, body=deflated(b"y" * 99)[:-2])),
    ),
    "zip: something behind deflate": (
        "archive-damaged",
        lambda: make_zip(Entry(b"x", b"y", body=deflated(b"y") + b"!")),
    ),
    "zip: name that reaches beyond the file": (
        "archive-header",
        lambda: patched(make_zip(), b"PK\x01\x02", 28, b"\xff\xff"),
    ),
    "zip: own name that reaches beyond the file": (
        "archive-truncated",
        lambda: patched(make_zip(), b"PK\x03\x04", 28, b"\xff\xff"),
    ),
}


def _told(data: bytes, **fields: int) -> Entry:
    """An entry that says one wrong thing in both places."""
    return Entry(b"x", data, local=dict(fields), central=dict(fields))


def _wide(*numbers: int) -> bytes:
    return b"\x01\x00" + (8 * len(numbers)).to_bytes(2, "little") + b"".join(n.to_bytes(8, "little") for n in numbers)


def _end_of_nothing() -> bytes:
    return b"PK\x05\x06" + bytes(18)


def _with_locator() -> bytes:
    plain = make_zip()
    return plain[:-22] + b"PK\x06\x07" + bytes(16) + plain[-22:]


def _nested() -> bytes:
    """The outer entry is stored, and its content is the inner one."""
    inner = Entry(b"evil", b"z" * 50)
    body = inner.local_header() + inner.packed
    outer = Entry(b"x", body, method=0)
    at = len(make_zip()) - len(_end_of_nothing()) - len(Entry(b"SKILL.md", b"hello").central_header(0))
    return make_zip(
        outer,
        Entry(
            b"evil",
            b"z" * 50,
            body=b"",
            central={"offset": at + len(outer.local_header()), "packed": len(inner.packed)},
        ),
    )
