"""How the cost of reading grows with a text that somebody shaped to be slow, and what frequent lookups cost."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillyard.bench.subject import WrongResult
from skillyard.bench.turns import median
from skillyard.domain.foreign_json import parse_json
from skillyard.domain.review.bundle import review
from skillyard.domain.review.file import File
from skillyard.engine.secrets.redact import Redaction
from skillyard.gate.http.guard import HttpGuard
from skillyard.gate.tls.client_hello import HelloReader
from skillyard.jailed.pool import NO_ACCOUNT, JailedPool
from skillyard.stores.seal.secrets import SealedSecrets
from skillyard.tar_receiver import TarReceiver

_HEAD = b"".join(b"X-%d: %s\r\n" % (at, b"y" * 60) for at in range(200))


def _reviewed(path: str, piece: str, count: int) -> Callable[[int], object]:
    return lambda part: review([File(path, (piece * (count // part)).encode())], None, {})


def _in_single_bytes(part: int) -> None:
    guard = HttpGuard("a.x.com", 80)
    said = b"GET / HTTP/1.1\r\nHost: a.x.com\r\n" + _HEAD[: len(_HEAD) // part] + b"\r\n\r\n"
    for at in range(len(said)):
        guard.client_says(said[at : at + 1])


def _redacted(part: int) -> None:
    """256 secrets, none of them in the text."""
    hiding = Redaction(hashlib.sha256(b"%d" % n).hexdigest() for n in range(256))
    hiding.text("0123456789abcdef" * (65_536 // part))


def _answered(part: int) -> None:
    parse_json(b"{%s}" % b",".join(b'"%x":1' % n for n in range(200_000 // part)))


def _hello_in_single_bytes(part: int) -> None:
    """A ClientHello whose every byte is a record of its own, and comes in single bytes."""
    padding = _vector(2, b"\x00\x15" + _vector(2, bytes(2500 // part)))
    message = b"\x01" + _vector(3, b"\x03\x03" + bytes(33) + b"\x00\x02\x13\x01\x01\x00" + padding)
    reader, read = HelloReader(), None
    for byte in message:
        for said in b"\x16\x03\x01\x00\x01" + bytes([byte]):
            read = reader.feed(bytes([said]))
    if read is None:
        raise WrongResult("the ClientHello was not read to its end")


def _vector(size: int, data: bytes) -> bytes:
    return len(data).to_bytes(size) + data


SHAPED: Mapping[str, Callable[[int], object]] = {
    "review: tags that do not end": _reviewed("a.md", "<a ", 23_000),
    "review: base64": _reviewed("a.md", "A1" * 99 + " ", 400),
    "review: commands in a pipe": _reviewed("a.md", "curl |", 13_000),
    "review: nested JSON": _reviewed("package.json", '{"a":', 16_000),
    "review: links": _reviewed("a.md", "](", 40_000),
    "review: passwords": _reviewed("a.md", "password='", 8_000),
    "a head of HTTP in single bytes": _in_single_bytes,
    "a log that is searched for 256 secrets": _redacted,
    "an answer of many members": _answered,
    "a ClientHello in single bytes": _hello_in_single_bytes,
}
"""Each reads a whole text, or the part of it that the argument says: 2 for a half."""
BOMBS: Mapping[str, Callable[[int], str]] = {
    "Python: nested calls": lambda part: "f(" * (100_000 // part),
    "Python: signs": lambda part: "-" * (200_000 // part) + "1",
    "Python: attributes": lambda part: "a" + ".b" * (100_000 // part),
    "Python: imports": lambda part: "import a\n" * (30_000 // part),
}
"""Read in a jailed process, as a review has it."""


@dataclass(slots=True)
class Reading:
    """``growth`` is the time of a whole text as a multiple of the time of its half, by what is read."""

    growth: dict[str, float] = field(default_factory=dict)
    unpacking_vs_tarfile: float = 0.0
    secret_vs_stat: float = 0.0

    @property
    def worst_growth(self) -> float:
        return max(self.growth.values(), default=0.0)

    def rows(self) -> Iterator[tuple[str, float]]:
        yield from self.growth.items()
        yield "unpack many files: of the same with tarfile", self.unpacking_vs_tarfile
        yield "read a secret again: of a look at its file", self.secret_vs_stat

    def as_dict(self) -> dict[str, Any]:
        return {name: round(value, 3) for name, value in self.rows()}


def measure(home: Path, *, quick: bool) -> Reading:
    """Measures all of it in the directory ``home``, which it makes. ``quick`` reads an eighth, and once."""
    home.mkdir(parents=True)
    part, times = (8, 1) if quick else (1, 3)
    found = Reading({name: _growth(times, read, part) for name, read in SHAPED.items()})
    found.growth |= asyncio.run(_bombs(times, part))
    raw = _archive(5000 // part)
    ours = _best(times, lambda number: _receive(raw, home / f"ours-{number}"))
    theirs = _best(times, lambda number: _extract(raw, home / f"theirs-{number}"))
    found.unpacking_vs_tarfile = ours / theirs
    found.secret_vs_stat = asyncio.run(_secret_vs_stat(home / "secrets", times))
    return found


def _growth(times: int, read: Callable[[int], object], part: int) -> float:
    half = _best(times, lambda _: read(2 * part))
    return _best(times, lambda _: read(part)) / half


async def _bombs(times: int, part: int) -> dict[str, float]:
    pool = JailedPool(NO_ACCOUNT)

    async def seconds(source: str) -> float:
        took = []
        for _ in range(times):
            began = time.perf_counter()
            await pool.read_python(source)
            took.append(time.perf_counter() - began)
        return min(took)

    try:
        await seconds("")
        return {name: await seconds(bomb(part)) / await seconds(bomb(2 * part)) for name, bomb in BOMBS.items()}
    finally:
        await pool.close()


def _best(times: int, work: Callable[[int], object]) -> float:
    """Returns the seconds of the quickest of so many ``times``; ``work`` gets the number of each."""
    took = []
    for number in range(times):
        began = time.process_time()
        work(number)
        took.append(time.process_time() - began)
    return max(min(took), 1e-6)


def _archive(files: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for number in range(files):
            entry = tarfile.TarInfo(f"pkg{number // 500}/mod_{number}.py")
            entry.size = 3000
            archive.addfile(entry, io.BytesIO(b"x" * 3000))
    return out.getvalue()


def _receive(raw: bytes, home: Path) -> None:
    home.mkdir()
    with TarReceiver(home) as receiver:
        for at in range(0, len(raw), 65_536):
            receiver.feed(raw[at : at + 65_536])
        receiver.finish()


def _extract(raw: bytes, home: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            (home / entry.name).parent.mkdir(parents=True, exist_ok=True)
            (home / entry.name).write_bytes(content.read() if content else b"")


async def _secret_vs_stat(home: Path, times: int) -> float:
    home.mkdir()
    store = SealedSecrets(home)
    for number in range(100):
        await store.set(f"S{number}", f"value-{number}-" + "x" * 40)
    ratios = []
    for _ in range(times):
        began = time.perf_counter()
        for _ in range(1000):
            await store.find("S50", "p", "s")
        middle = time.perf_counter()
        for _ in range(1000):
            os.stat(home)  # noqa: PTH116 - a Path would cost more than the look
        ratios.append((middle - began) / (time.perf_counter() - middle))
    return median(ratios)
