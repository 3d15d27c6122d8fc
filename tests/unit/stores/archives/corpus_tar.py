"""Attacks that are tar archives."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.stores.archives.tars import END, GNU, gzipped, member, pax, record, sealed, tar

MIB = 1024 * 1024


def _kind(kind: bytes, **fields: bytes) -> Callable[[], bytes]:
    return lambda: tar(member(b"x", kind=kind, **fields))  # type: ignore[arg-type]


_LONG = b"d/" * 60 + b"x"
TAR: dict[str, tuple[str, Callable[[], bytes]]] = {
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
