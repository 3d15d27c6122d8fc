"""Archives that were right once and are not any more: always a bundle or findings, and never two readings of one."""

from __future__ import annotations

import io
import tarfile
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.archive.names import ArchiveRefused
from skillyard.domain.archive.tar_stream import TarStream
from skillyard.domain.rules import RULES
from skillyard.stores.skills.archives import read_archive
from skillyard.stores.skills.tree import Tree
from tests.unit.stores.archives.sinks import Kept
from tests.unit.stores.archives.tars import GNU, gzipped, member, pax, record, sealed, tar
from tests.unit.stores.archives.zips import Entry, make_zip, streamed

SEEDS = {
    "tar": tar(
        member(b"code/", kind=b"5", mode=b"0000755"),
        member(b"code/main.py", b"y" * 600, mode=b"0000755"),
        pax(record(b"path", b"a/longer/name"), record(b"mtime", b"1.5")),
        member(b"short", b"z"),
        member(b"././@LongLink", b"b/long/name\0", kind=b"L", magic=GNU),
        member(b"short", b"w", magic=GNU),
        member(b"tail", prefix=b"some/prefix"),
    ),
    "zip": make_zip(
        Entry(b"code/", mode=0o040755, method=0),
        Entry(b"code/main.py", b"y" * 600, mode=0o100755),
        streamed(b"a", b"streamed" * 20),
        streamed(b"b", b"streamed", mark=False),
        streamed(b"c", b"streamed", wide=True),
        Entry(b"d", b"stored", method=0, extra=b"\x55\x54\x05\x00\x03\0\0\0\0"),
        comment=b"a comment",
    ),
}
SEEDS["tar.gz"] = gzipped(SEEDS["tar"])

_INTERESTING = (0, 1, 0x2E, 0x2F, 0x30, 0x37, 0x40, 0x50, 0x5C, 0x7F, 0x80, 0xFF)


@st.composite
def mutants(draw: st.DrawFn, seed: bytes) -> bytes:
    raw = bytearray(seed)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        match draw(st.integers(0, 5)):
            case 0 if raw:
                raw[at] = draw(st.sampled_from(_INTERESTING))
            case 1 if raw:
                raw[at] ^= 1 << draw(st.integers(0, 7))
            case 2:
                del raw[at : at + draw(st.sampled_from((1, 4, 22, 46, 512)))]
            case 3:
                raw[at:at] = draw(st.one_of(st.binary(max_size=8), st.just(bytes(512))))
            case 4:
                other = draw(st.integers(0, max(0, len(raw) - 1)))
                raw[at : at + 4] = raw[other : other + 4]
            case _:
                other, length = draw(st.integers(0, len(raw))), draw(st.sampled_from((30, 46, 512, 1024)))
                raw[at:at] = raw[other : other + length]
    return bytes(raw)


def resealed(raw: bytes) -> bytes:
    """Whatever looks like a header gets a check sum that holds, so that what is behind it is looked at."""
    blocks = [raw[at : at + 512] for at in range(0, len(raw), 512)]
    return b"".join(sealed(block) if block[257:262] == b"ustar" else block for block in blocks)


def recounted(raw: bytes) -> bytes:
    """The last record tells of the directory that is there."""
    end, start = raw.rfind(b"PK\x05\x06"), raw.find(b"PK\x01\x02")
    if end < 0 or start < 0 or len(raw) < end + 22 or end < start:
        return raw
    count = raw[start:end].count(b"PK\x01\x02").to_bytes(2, "little") * 2
    sizes = (end - start).to_bytes(4, "little") + start.to_bytes(4, "little")
    return raw[: end + 8] + count + sizes + (len(raw) - end - 22).to_bytes(2, "little") + raw[end + 22 :]


def judged(raw: bytes) -> Tree | None:
    """What every answer must be, whatever was asked."""
    unpacked, findings = read_archive(io.BytesIO(raw))
    if unpacked is None:
        assert findings
        assert {finding.rule for finding in findings} <= RULES.keys()
        assert all(finding.file.isprintable() for finding in findings)
        return None
    for path, file in unpacked.tree.files.items():
        assert path.isprintable()
        assert not path.startswith("/")
        assert "\\" not in path
        assert not {"", ".", ".."} & set(path.split("/"))
        assert file.data is not None
    return unpacked.tree


def tar_agrees(tree: Tree, raw: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        files = [entry for entry in archive.getmembers() if not entry.isdir()]
        found = {_plain(e.name): (archive.extractfile(e) or io.BytesIO()).read() for e in files}
    _compare(tree, found)


def zip_agrees(tree: Tree, raw: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        found = {}
        for info in archive.infolist():
            name = info.filename if info.flag_bits & 1 << 11 else info.filename.encode("cp437").decode()
            if not info.is_dir():
                found[_plain(name)] = archive.read(info)
    _compare(tree, found)


def _plain(name: str) -> str:
    while name.startswith("./"):
        name = name[2:]
    return name


def _compare(tree: Tree, found: dict[str, bytes]) -> None:
    tops = {path.partition("/")[0] for path in found}
    ours = {path: file.data for path, file in tree.files.items()}
    if len(ours) == len(found) and ours.keys() != found.keys() and len(tops) == 1:
        found = {path.partition("/")[2]: data for path, data in found.items()}
    assert ours == found


def _tar(raw: bytes) -> None:
    tree = judged(raw)
    if tree is not None:
        tar_agrees(tree, raw)


def _zip(raw: bytes) -> None:
    tree = judged(raw)
    if tree is not None:
        zip_agrees(tree, raw)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_seeds_are_right(seed: str) -> None:
    assert judged(SEEDS[seed]) is not None


@given(mutants(SEEDS["tar"]))
def test_a_mutant_of_a_tar_is_a_bundle_or_findings(raw: bytes) -> None:
    _tar(resealed(raw))


@given(mutants(SEEDS["tar.gz"]))
def test_a_mutant_of_a_compressed_tar_is_a_bundle_or_findings(raw: bytes) -> None:
    judged(raw)


@given(mutants(SEEDS["zip"]), st.booleans())
def test_a_mutant_of_a_zip_is_a_bundle_or_findings(raw: bytes, counted: bool) -> None:
    _zip(recounted(raw) if counted else raw)


@given(st.binary(max_size=2000), st.sampled_from((b"", b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b\x08\x00")))
def test_noise_is_a_bundle_or_findings(raw: bytes, magic: bytes) -> None:
    judged(magic + raw)


@given(st.lists(st.tuples(st.integers(0, 5000), st.binary(max_size=3)), max_size=6), st.integers(1, 700))
def test_pieces_of_any_size_make_no_difference(cuts: list[tuple[int, bytes]], size: int) -> None:
    raw = bytearray(SEEDS["tar"])
    for at, data in cuts:
        raw[at : at + len(data)] = data

    def outcome(step: int) -> tuple[object, ...]:
        kept = Kept()
        stream = TarStream(kept)
        try:
            for at in range(0, len(raw), step):
                stream.feed(bytes(raw[at : at + step]))
            stream.finish()
        except ArchiveRefused as refused:
            return (*kept.seen, refused.rule)
        return tuple(kept.seen)

    assert outcome(size) == outcome(len(raw) + 1)
