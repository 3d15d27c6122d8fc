"""The attacks: each an archive made on the spot, and the rule that must refuse it."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.archives.tars import END, GNU, gzipped, member, pax, record, repeated, sealed, tar
from tests.archives.zips import DESCRIPTOR, Entry, deflated, descriptor, make_zip

MIB = 1024 * 1024


class Attack(NamedTuple):
    name: str
    rule: str
    make: Callable[[], bytes]


NAMES: dict[str, tuple[str, bytes]] = {
    "up": ("archive-traversal", b"../evil"),
    "up in the middle": ("archive-traversal", b"code/../../evil"),
    "up and back": ("archive-traversal", b"code/../SKILL2.md"),
    "up at the end": ("archive-traversal", b"code/.."),
    "up out of what is left out": ("archive-traversal", b".git/../../evil"),
    "absolute": ("archive-absolute", b"/etc/cron.d/evil"),
    "two slashes": ("archive-absolute", b"//server/share"),
    "drive": ("archive-absolute", b"C:/Windows/evil"),
    "drive, relative": ("archive-absolute", b"c:evil"),
    "backslashes": ("archive-backslash", b"..\\..\\evil"),
    "one backslash": ("archive-backslash", b"code\\main.py"),
    "UNC": ("archive-backslash", b"\\\\server\\share"),
    "newline": ("archive-name", b"a\nb"),
    "escape": ("archive-name", b"a\x1b[2Jb"),
    "delete": ("archive-name", b"a\x7fb"),
    "C1": ("archive-name", "a\u009bb".encode()),
    "right to left": ("archive-name", "exe.\u202etxt".encode()),
    "zero width": ("archive-name", "SKILL\u200b.md".encode()),
    "line separator": ("archive-name", "a\u2028b".encode()),
    "no-break space": ("archive-name", "a\u00a0b".encode()),
    "private use": ("archive-name", "a\ue000b".encode()),
    "a dot in the middle": ("archive-name", b"code/./main.py"),
    "nothing in the middle": ("archive-name", b"code//main.py"),
    "Latin-1": ("archive-encoding", b"caf\xe9"),
    "overlong": ("archive-encoding", b"a\xc0\xafb"),
    "surrogate": ("archive-encoding", b"a\xed\xa0\x80b"),
    "long component": ("archive-name-length", b"x" * 256),
    "deep": ("archive-depth", b"d/" * 18 + b"x"),
    "deep by one": ("archive-depth", b"d/" * 17 + b"x"),
    "CON": ("archive-reserved-name", b"CON"),
    "nul with a suffix": ("archive-reserved-name", b"code/nul.tar.gz"),
    "a device as directory": ("archive-reserved-name", b"aux/main.py"),
    "COM1": ("archive-reserved-name", b"Com1 .txt"),
    "superscript": ("archive-reserved-name", "LPT²".encode()),
    "dot at the end": ("archive-name-end", b"SKILL.md."),
    "space at the end": ("archive-name-end", b"SKILL.md "),
    "three dots": ("archive-name-end", b"..."),
    "a directory's dot": ("archive-name-end", b"code./main.py"),
    "twice": ("archive-duplicate", b"SKILL.md"),
    "twice, another way": ("archive-duplicate", b"./SKILL.md"),
    "below a file": ("archive-duplicate", b"SKILL.md/x"),
    "case": ("archive-collision", b"skill.MD"),
    "long s": ("archive-collision", "\u017fkill.md".encode()),
    "full width": ("archive-collision", "\uff33\uff2b\uff29\uff2c\uff2c.md".encode()),
    "Kelvin": ("archive-collision", "S\u212aILL.md".encode()),
}
"""Of one file beside SKILL.md, in every format."""


def attacks() -> Iterator[Attack]:
    for name, (rule, raw) in NAMES.items():
        yield Attack(f"tar: {name}", rule, lambda raw=raw: tar(_named(raw)))  # type: ignore[misc]
        yield Attack(f"zip: {name}", rule, lambda raw=raw: make_zip(Entry(raw, b"x")))  # type: ignore[misc]
    for name, (rule, make) in {**_PAIRS, **_FORMATS, **_TAR, **_ZIP, **_BOMBS}.items():
        yield Attack(name, rule, make)


def _named(raw: bytes) -> bytes:
    return member(raw, b"x") if len(raw) <= 100 else pax(record(b"path", raw)) + member(b"-", b"x")


def _both(*names: bytes) -> tuple[Callable[[], bytes], Callable[[], bytes]]:
    return (
        lambda: tar(*(_named(name) for name in names)),
        lambda: make_zip(*(Entry(name, b"x") for name in names)),
    )


def _pairs() -> dict[str, tuple[str, Callable[[], bytes]]]:
    table = {
        "composition": ("archive-collision", ("é.md".encode(), "e\u0301.md".encode())),
        "ligature": ("archive-collision", (b"office", "o\ufb03ce".encode())),
        "case of directories": ("archive-collision", (b"Code/a", b"code/b")),
        "Straße": ("archive-collision", (b"STRASSE", "straße".encode())),
        "Greek sigma": ("archive-collision", ("ΟΔΟΣ".encode(), "οδος".encode())),
        "file, then directory": ("archive-duplicate", (b"code", b"code/main.py")),
        "directory, then file": ("archive-duplicate", (b"code/main.py", b"code")),
    }
    made = {}
    for name, (rule, names) in table.items():
        in_tar, in_zip = _both(*names)
        made[f"tar: {name}"] = (rule, in_tar)
        made[f"zip: {name}"] = (rule, in_zip)
    return made


_PAIRS = _pairs()

_FORMATS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "nothing": ("archive-format", lambda: b""),
    "text": ("archive-format", lambda: b"---\nname: x\n---\n" * 100),
    "zeros": ("archive-format", lambda: bytes(4096)),
    "xz": ("archive-format", lambda: lzma.compress(tar())),
    "bzip2": ("archive-format", lambda: b"BZh91AY&SY" + bytes(100)),
    "zstd": ("archive-format", lambda: b"\x28\xb5\x2f\xfd" + bytes(100)),
    "7z": ("archive-format", lambda: b"7z\xbc\xaf\x27\x1c" + bytes(100)),
    "rar": ("archive-format", lambda: b"Rar!\x1a\x07\x01" + bytes(100)),
    "tar of 1979": ("archive-format", lambda: member(b"SKILL.md", b"x", magic=bytes(8)) + END),
    "gzip in gzip": ("archive-format", lambda: gzipped(gzipped(tar()))),
    "gzipped zip": ("archive-format", lambda: gzipped(make_zip() * 10)),
    "a program before a zip": ("archive-format", lambda: make_zip(before=b"#!/bin/sh\n" * 8, shifted=True)),
    "a spanned zip": ("archive-format", lambda: b"PK\x07\x08" + make_zip()),
    "too large": ("archive-size", lambda: tar() + bytes(33 * MIB)),
    "an empty zip": ("archive-empty", lambda: make_zip(skill=False)),
    "an empty tar": ("archive-empty", lambda: member(b"code/", kind=b"5") + END),
    "nothing but what is left out": ("archive-empty", lambda: member(b".git/HEAD", b"x") + END),
}


def _kind(kind: bytes, **fields: bytes) -> Callable[[], bytes]:
    return lambda: tar(member(b"x", kind=kind, **fields))  # type: ignore[arg-type]


_LONG = b"d/" * 60 + b"x"
_TAR: dict[str, tuple[str, Callable[[], bytes]]] = {
    "tar: symbolic link": ("archive-link", _kind(b"2", link=b"/etc/passwd")),
    "tar: symbolic link inside": ("archive-link", _kind(b"2", link=b"SKILL.md")),
    "tar: hard link": ("archive-link", _kind(b"1", link=b"SKILL.md")),
    "tar: hard link outside": ("archive-link", _kind(b"1", link=b"/etc/shadow")),
    "tar: long link": ("archive-link", lambda: tar(member(b"././@LongLink", b"y" * 200, kind=b"K"))),
    "tar: a link's target in an extended header": (
        "archive-link",
        lambda: tar(pax(record(b"linkpath", b"/etc")), member(b"x")),
    ),
    "tar: a link, then a file through it": (
        "archive-link",
        lambda: tar(member(b"d", kind=b"2", link=b"/tmp"), member(b"d/evil", b"x")),
    ),
    "tar: character device": ("archive-special", _kind(b"3")),
    "tar: block device": ("archive-special", _kind(b"4")),
    "tar: FIFO": ("archive-special", _kind(b"6")),
    "tar: contiguous": ("archive-special", _kind(b"7")),
    "tar: GNU sparse": ("archive-special", _kind(b"S", magic=GNU)),
    "tar: volume": ("archive-special", _kind(b"V", magic=GNU)),
    "tar: second volume": ("archive-special", _kind(b"M", magic=GNU)),
    "tar: directory dump": ("archive-special", _kind(b"D", magic=GNU)),
    "tar: unknown kind": ("archive-special", _kind(b"\xff")),
    "tar: sparse by extended header": (
        "archive-special",
        lambda: tar(pax(record(b"GNU.sparse.major", b"1")), member(b"x", b"y")),
    ),
    "tar: the same directory twice": (
        "archive-duplicate",
        lambda: tar(member(b"code/", kind=b"5"), member(b"code/", kind=b"5")),
    ),
    "tar: a file as the root": ("archive-name", lambda: tar(member(b"./.", b"x"))),
    "tar: no name": ("archive-name", lambda: tar(member(b"", b"x"))),
    "tar: NUL in a long name": (
        "archive-extended",
        lambda: tar(member(b"././@LongLink", b"SKILL2.md\0/../x\0", kind=b"L", magic=GNU), member(b"x", b"y")),
    ),
    "tar: long name without end": (
        "archive-extended",
        lambda: tar(member(b"././@LongLink", b"SKILL2.md", kind=b"L", magic=GNU), member(b"x", b"y")),
    ),
    "tar: NUL in a path": ("archive-name", lambda: tar(pax(record(b"path", b"a\0b")), member(b"x", b"y"))),
    "tar: long path": (
        "archive-name-length",
        lambda: tar(pax(record(b"path", b"/".join([b"x" * 200] * 6))), member(b"x")),
    ),
    "tar: up by prefix": ("archive-traversal", lambda: tar(member(b"evil", b"x", prefix=b"../.."))),
    "tar: absolute by prefix": ("archive-absolute", lambda: tar(member(b"evil", b"x", prefix=b"/etc"))),
    "tar: up by path": ("archive-traversal", lambda: tar(pax(record(b"path", b"../x")), member(b"fine", b"x"))),
    "tar: up by long name": (
        "archive-traversal",
        lambda: tar(member(b"././@LongLink", b"../../x\0", kind=b"L", magic=GNU), member(b"fine", b"x")),
    ),
    "tar: deep by long name": (
        "archive-depth",
        lambda: tar(member(b"././@LongLink", _LONG + b"\0", kind=b"L", magic=GNU), member(b"fine", b"x")),
    ),
    "tar: directory with content": ("archive-header", lambda: tar(member(b"code/", b"x", kind=b"5"))),
    "tar: file named as a directory": ("archive-header", lambda: tar(member(b"code/", b"x"))),
    "tar: size in binary": ("archive-header", lambda: tar(member(b"x", size=b"\x80" + bytes(10) + b"\x05"))),
    "tar: negative size": ("archive-header", lambda: tar(member(b"x", size=b"-0000000001"))),
    "tar: size of no digits": ("archive-header", lambda: tar(member(b"x", size=b"0x10"))),
    "tar: digits of other alphabets": ("archive-header", lambda: tar(member(b"x", size="٣".encode()))),
    "tar: mode of no digits": ("archive-header", lambda: tar(member(b"x", mode=b"rwxr--r"))),
    "tar: owner of no digits": ("archive-header", lambda: tar(_owned(b"root\0\0\0\0"))),
    "tar: incremental backup": ("archive-header", lambda: tar(member(b"x", b"y", magic=GNU, prefix=b"00000000000"))),
    "tar: no magic": ("archive-header", lambda: tar(member(b"x", b"y", magic=bytes(8)))),
    "tar: check sum": ("archive-damaged", lambda: tar(member(b"x", b"y", checksum=1))),
    "tar: signed check sum": (
        "archive-damaged",
        lambda: tar(member(b"\xc3\xa9", b"y", checksum=_signed(member(b"\xc3\xa9", b"y")))),
    ),
    "tar: huge extended header": ("archive-extended", lambda: tar(pax(size=8 * 1024**3 - 1))),
    "tar: huge long name": ("archive-extended", lambda: tar(member(b"L", b"x" * 70_000, kind=b"L"))),
    "tar: many extended headers": ("archive-extended", lambda: tar(*[pax(record(b"uid", b"1"))] * 3, member(b"x"))),
    "tar: many lines": ("archive-extended", lambda: tar(pax(record(b"uid", b"1") * 65), member(b"x"))),
    "tar: size in an extended header": (
        "archive-extended",
        lambda: tar(pax(record(b"size", b"512")), member(b"x", b"y" * 512)),
    ),
    "tar: two paths": (
        "archive-extended",
        lambda: tar(pax(record(b"path", b"a") + record(b"path", b"b")), member(b"x")),
    ),
    "tar: a path and a long name": (
        "archive-extended",
        lambda: tar(pax(record(b"path", b"a")), member(b"L", b"b\0", kind=b"L"), member(b"x")),
    ),
    "tar: a path for all": ("archive-extended", lambda: tar(pax(record(b"path", b"a"), kind=b"g"), member(b"x"))),
    "tar: unknown key": ("archive-extended", lambda: tar(pax(record(b"evil", b"a")), member(b"x"))),
    "tar: a line that lies": ("archive-extended", lambda: tar(pax(b"99 path=a\n"), member(b"x"))),
    "tar: a line of nothing": ("archive-extended", lambda: tar(pax(b"0 path=a\n"), member(b"x"))),
    "tar: a line without end": ("archive-extended", lambda: tar(pax(b"9 path=aa"), member(b"x"))),
    "tar: a line of many digits": ("archive-extended", lambda: tar(pax(b"9" * 5000 + b" a=b\n"), member(b"x"))),
    "tar: an extended header of nothing": ("archive-header", lambda: tar(pax(record(b"path", b"a")))),
    "tar: cut in a header": ("archive-truncated", lambda: tar()[:1200]),
    "tar: cut in content": ("archive-truncated", lambda: member(b"SKILL.md", b"x" * 5000)[:2000]),
    "tar: one block of end": ("archive-truncated", lambda: tar()[:-512]),
    "tar: no end": ("archive-truncated", lambda: tar()[:-1024]),
    "tar: goes on after its end": ("archive-trailing", lambda: tar() + member(b"evil", b"x")),
    "tar: goes on after half its end": ("archive-trailing", lambda: tar()[:-512] + member(b"evil", b"x") + END),
    "tar: endless zeros": ("archive-trailing", lambda: gzipped(tar() + bytes(2 * MIB))),
    "tar.gz: cut": ("archive-truncated", lambda: gzipped(tar())[:-9]),
    "tar.gz: cut early": ("archive-truncated", lambda: gzipped(tar())[:12]),
    "tar.gz: check sum": ("archive-damaged", lambda: _flipped(gzipped(tar()), -8)),
    "tar.gz: length": ("archive-damaged", lambda: _flipped(gzipped(tar()), -2)),
    "tar.gz: no deflate": ("archive-damaged", lambda: gzipped(tar())[:10] + b"\xff" * 100),
    "tar.gz: two members": ("archive-trailing", lambda: gzipped(tar()[:-1024]) + gzipped(END)),
    "tar.gz: something behind": ("archive-trailing", lambda: gzipped(tar()) + b"evil"),
}


def _owned(field: bytes) -> bytes:
    block = member(b"x", b"")
    return sealed(block[:108] + field + block[116:])


def _signed(block: bytes) -> int:
    """What tar programs that counted bytes as signed wrote."""
    blank = block[:148] + b" " * 8 + block[156:512]
    return sum(byte - 256 if byte > 127 else byte for byte in blank)


def _flipped(raw: bytes, at: int) -> bytes:
    changed = bytearray(raw)
    changed[at] ^= 0x55
    return bytes(changed)


_WIDE = 0xFFFFFFFF
_ZIP: dict[str, tuple[str, Callable[[], bytes]]] = {
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
        lambda: _patched(make_zip(), b"PK\x01\x02", 6, b"\x40"),
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
        lambda: _patched(make_zip(), b"PK\x01\x02", 28, b"\xff\xff"),
    ),
    "zip: own name that reaches beyond the file": (
        "archive-truncated",
        lambda: _patched(make_zip(), b"PK\x03\x04", 28, b"\xff\xff"),
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


def _patched(raw: bytes, mark: bytes, offset: int, value: bytes) -> bytes:
    at = raw.index(mark) + offset
    return raw[:at] + value + raw[at + len(value) :]


_BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
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
        lambda: _patched(make_zip(), b"PK\x05\x06", 8, b"\x60\xea\x60\xea"),
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


ATTACKS = tuple(attacks())
