"""Trees out of a sandbox, held to what the port promises of them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator

import pytest

from skillyard.domain.errors import SandboxFault
from skillyard.sandbox.file_programs import checked

pytestmark = pytest.mark.anyio


def archive(*entries: tuple[str, bytes, str], sizes: int = 3) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as made:
        for name, kind, target in entries:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            info.size = sizes if kind == tarfile.REGTYPE else 0
            made.addfile(info, io.BytesIO(b"x" * info.size))
    return out.getvalue()


async def through(data: bytes, size: int = 100) -> bytes:
    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(data), size):
            yield data[at : at + size]

    return b"".join([piece async for piece in checked(pieces())])


GOOD = archive(
    ("d", tarfile.DIRTYPE, ""),
    ("d/\udcff", tarfile.REGTYPE, ""),
    ("l", tarfile.SYMTYPE, "/etc/" + "x" * 200),
    ("n" * 150 + "/" + "m" * 150, tarfile.REGTYPE, ""),
)


@pytest.mark.parametrize("size", [1, 511, 100_000])
async def test_what_is_promised_passes_as_it_is(size: int) -> None:
    assert await through(GOOD, size) == GOOD


@pytest.mark.parametrize(
    "hostile",
    [
        archive(("../x", tarfile.REGTYPE, "")),
        archive(("/x", tarfile.REGTYPE, "")),
        archive(("a/../../x", tarfile.SYMTYPE, "y")),
        archive(("hard", tarfile.LNKTYPE, "x")),
        archive(("device", tarfile.BLKTYPE, "")),
        archive(("pipe", tarfile.FIFOTYPE, "")),
        archive(("n" * 70_000, tarfile.REGTYPE, "")),
        GOOD[:700],
        GOOD + b"more",
        b"",
        b"x" * 2000,
    ],
    ids=["up", "absolute", "up within", "hard link", "device", "FIFO", "long", "cut", "more", "nothing", "noise"],
)
async def test_what_is_not_promised_is_a_fault(hostile: bytes) -> None:
    with pytest.raises(SandboxFault):
        await through(hostile)


async def test_a_size_that_lies_does_not_hide_an_entry() -> None:
    """The content of one entry that looks like another is content, and what follows must be a header again."""
    inner = archive(("/etc/passwd", tarfile.REGTYPE, ""))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as made:
        info = tarfile.TarInfo("outer")
        info.size = len(inner)
        made.addfile(info, io.BytesIO(inner))
    assert await through(out.getvalue()) == out.getvalue()
    with pytest.raises(SandboxFault):
        await through(out.getvalue().replace(b"%011o" % len(inner), b"%011o" % 0, 1))
