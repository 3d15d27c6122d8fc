"""The attacks: each an archive made on the spot, and the rule that must refuse it."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.unit.stores.archives.corpus_bombs import BOMBS
from tests.unit.stores.archives.corpus_names import NAMES, PAIRS
from tests.unit.stores.archives.corpus_tar import TAR
from tests.unit.stores.archives.corpus_zip import ZIP
from tests.unit.stores.archives.tars import END, gzipped, member, pax, record, tar
from tests.unit.stores.archives.zips import Entry, make_zip

MIB = 1024 * 1024


class Attack(NamedTuple):
    name: str
    rule: str
    make: Callable[[], bytes]


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


def attacks() -> Iterator[Attack]:
    for name, (rule, raw) in NAMES.items():
        yield from _in_both(name, rule, raw)
    for name, (rule, pair) in PAIRS.items():
        yield from _in_both(name, rule, *pair)
    for name, (rule, make) in {**_FORMATS, **TAR, **ZIP, **BOMBS}.items():
        yield Attack(name, rule, make)


def _in_both(name: str, rule: str, *names: bytes) -> Iterator[Attack]:
    yield Attack(f"tar: {name}", rule, lambda: tar(*(_named(raw) for raw in names)))
    yield Attack(f"zip: {name}", rule, lambda: make_zip(*(Entry(raw, b"x") for raw in names)))


def _named(raw: bytes) -> bytes:
    return member(raw, b"x") if len(raw) <= 100 else pax(record(b"path", raw)) + member(b"-", b"x")


ATTACKS = tuple(attacks())
