"""A tar stream of hostile hands, written below a directory: what comes out of the sandbox that builds environments."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from skillyard.domain.archive.names import ArchiveRefused
from skillyard.tar_receiver import Received, ReceiverLimits, TarReceiver, receive_tar
from skillyard.testing.sandbox_suite.ground import descriptors
from tests.unit.stores.archives.corpus import ATTACKS, Attack
from tests.unit.stores.archives.tars import END, GNU, member, pax, record, tar
from tests.watching import counted


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "staging").mkdir()
    return tmp_path / "staging"


def receive(home: Path, raw: bytes, limits: ReceiverLimits | None = None, *, sealed: bool = False) -> Received:
    with TarReceiver(home, limits, sealed=sealed) as receiver:
        for at in range(0, len(raw), 1000):
            receiver.feed(raw[at : at + 1000])
        return receiver.finish()


def refusal(home: Path, raw: bytes, limits: ReceiverLimits | None = None) -> str:
    before = descriptors()
    with pytest.raises(ArchiveRefused) as refused:
        receive(home, raw, limits)
    assert descriptors() == before
    return refused.value.rule


def contents(home: Path) -> dict[str, tuple[bytes, int]]:
    paths = [path for path in home.rglob("*") if path.is_file()]
    return {str(p.relative_to(home)): (p.read_bytes(), stat.S_IMODE(p.stat().st_mode)) for p in paths}


def test_files_and_directories_as_they_were(home: Path) -> None:
    raw = tar(
        member(b"pkg/", kind=b"5", mode=b"0002777"),
        member(b"pkg/run", b"y" * 3000, mode=b"0006755"),
        member(b"pkg/sub/deep/x.py", b"", mode=b"0000000"),
        member(b"other/a", b"1"),
        pax(record(b"path", b"pkg/" + b"n" * 200)),
        member(b"short", b"2"),
        member(b"././@LongLink", b"pkg/" + b"m" * 200 + b"\0", kind=b"L", magic=GNU),
        member(b"short", b"3", magic=GNU),
        member(b"pkg/", kind=b"5"),
        member(b"./", kind=b"5"),
    )
    old = os.umask(0o077)
    try:
        received = receive(home, raw)
    finally:
        os.umask(old)
    assert contents(home) == {
        "SKILL.md": (b"hello", 0o644),
        "pkg/run": (b"y" * 3000, 0o755),
        "pkg/sub/deep/x.py": (b"", 0o644),
        "other/a": (b"1", 0o644),
        "pkg/" + "n" * 200: (b"2", 0o644),
        "pkg/" + "m" * 200: (b"3", 0o644),
    }
    assert received == Received(files=6, directories=4, bytes=3008)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in home.rglob("*") if path.is_dir()}
    assert modes == {0o755}


def test_sealed_files_cannot_be_written(home: Path) -> None:
    receive(home, tar(member(b"run", b"y", mode=b"0000755")), sealed=True)
    assert contents(home) == {"SKILL.md": (b"hello", 0o444), "run": (b"y", 0o555)}


_SKILLS_ONLY = ("archive-reserved-name", "archive-name-end", "archive-collision", "archive-files", "archive-size")
_OTHERWISE = ("tar: endless zeros", "tar: the same directory twice")
"""One is gzipped; the other is no harm here."""
_STREAMED = [
    attack
    for attack in ATTACKS
    if attack.name.startswith("tar: ") and attack.rule not in _SKILLS_ONLY and attack.name not in _OTHERWISE
]


@pytest.mark.parametrize("attack", _STREAMED, ids=lambda attack: attack.name)
def test_attacks_are_refused_and_leave_nothing_outside(attack: Attack, home: Path) -> None:
    assert refusal(home, attack.make(), ReceiverLimits(depth=16)) == attack.rule
    assert os.listdir(home.parent) == ["staging"]


def test_links_that_lie_in_the_way_are_not_followed(home: Path) -> None:
    """The directory is ours alone; even if it were not, nothing is written through a link."""
    (home.parent / "target").mkdir()
    (home / "d").symlink_to(home.parent / "target")
    (home / "f").symlink_to(home.parent / "file")
    assert refusal(home, tar(member(b"d/evil", b"x"))) == "archive-duplicate"
    (home / "SKILL.md").unlink()
    assert refusal(home, tar(member(b"f", b"x"))) == "archive-duplicate"
    assert sorted(os.listdir(home.parent)) == ["staging", "target"]
    assert os.listdir(home.parent / "target") == []


def test_a_directory_that_changes_under_way_is_not_left(home: Path) -> None:
    with TarReceiver(home) as receiver:
        receiver.feed(member(b"a/b/one", b"1"))
        (home / "a").rename(home.parent / "moved")
        (home / "a").symlink_to("/")
        receiver.feed(member(b"a/b/two", b"2"))
        with pytest.raises(ArchiveRefused):
            receiver.feed(member(b"c", b"") + member(b"a/tmp/evil", b"3"))
    assert (home.parent / "moved/b/two").read_bytes() == b"2"


LIMITS = ReceiverLimits(bytes=1000, entries=10, depth=3)


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        (tar(member(b"x", b"y" * 996)), "archive-bytes"),
        (tar(member(b"x", size=8 * 1024**3 - 1)), "archive-bytes"),
        (tar(*(member(b"%d" % i) for i in range(10))), "archive-entries"),
        (tar(*(member(b"./", kind=b"5") for i in range(10))), "archive-entries"),
        (tar(*(pax(record(b"uid", b"1")) + member(b"./", kind=b"5") for i in range(5))), "archive-entries"),
        (tar(member(b"a/b/c/d/e")), "archive-depth"),
        (tar(member(b"a/b/c/d/", kind=b"5")), None),
        (tar(member(b"x", b"y" * 995)), None),
    ],
)
def test_limits(home: Path, raw: bytes, rule: str | None) -> None:
    if rule is None:
        receive(home, raw, LIMITS)
    else:
        assert refusal(home, raw, LIMITS) == rule


async def _pieces(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


@pytest.mark.anyio
async def test_from_an_asynchronous_stream(home: Path) -> None:
    raw = tar(member(b"big", os.urandom(3_000_000)), member(b"a/b", b"x"))
    received = await receive_tar(_pieces(raw[at : at + 65_536] for at in range(0, len(raw), 65_536)), home)
    assert received == Received(files=3, directories=1, bytes=3_000_006)
    assert (home / "big").stat().st_size == 3_000_000


@pytest.mark.anyio
async def test_a_stream_that_breaks_off(home: Path) -> None:
    with pytest.raises(ArchiveRefused) as refused:
        await receive_tar(_pieces([tar()[:700]]), home)
    assert refused.value.rule == "archive-truncated"


@pytest.mark.anyio
async def test_cancelled_while_it_writes_it_lets_go_of_everything(home: Path) -> None:
    before = descriptors()
    waiting = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield member(b"x", size=10_000_000)
        yield bytes(2_000_000)
        waiting.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(receive_tar(endless(), home))
    await asyncio.wait_for(waiting.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    deadline = time.monotonic() + 10
    while descriptors() > before and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert descriptors() == before


def test_closing_waits_for_the_thread_that_writes(home: Path) -> None:
    """Else it would go on writing into a descriptor that is somebody else's by then."""
    receiver = TarReceiver(home)
    entered, leave = threading.Event(), threading.Event()

    original = receiver.header

    def header() -> None:
        entered.set()
        leave.wait(10)
        original()

    receiver.header = header  # type: ignore[method-assign]
    writer = threading.Thread(target=receiver.feed, args=(member(b"x", b"y"),))
    closer = threading.Thread(target=receiver.close)
    writer.start()
    entered.wait(10)
    closer.start()
    assert closer.is_alive()
    leave.set()
    writer.join(10)
    closer.join(10)
    assert (home / "x").read_bytes() == b"y"
    with pytest.raises(ValueError, match="closed"):
        receiver.feed(b"")


def test_each_file_is_opened_once_and_each_directory_made_once(home: Path) -> None:
    raw = b"".join(member(b"pkg%d/mod_%d.py" % (i // 50, i), b"x") for i in range(200)) + END
    with counted() as events:
        received = receive(home, raw)
    assert (received.files, received.directories) == (200, 4)
    assert events["os.mkdir"] == 4
    assert 200 <= events["open"] <= 200 + 3 * 4


@pytest.mark.long
def test_gigabytes_in_constant_memory(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
from skillyard.tar_receiver import TarReceiver
from tests.unit.stores.archives.tars import member, END
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with TarReceiver(Path(sys.argv[1])) as receiver:
    for i in range(2):
        receiver.feed(member(b"%d" % i, size=1024**3))
        for _ in range(1024): receiver.feed(bytes(1024**2))
    for i in range(100_000): receiver.feed(member(b"d%d/%d" % (i // 1000, i)))
    receiver.feed(END)
    print(receiver.finish().bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=Path(__file__).parents[4],
        env={"PYTHONPATH": "src:."},
        capture_output=True,
        text=True,
        check=True,
        timeout=110,
    )
    size, grown = map(int, done.stdout.split())
    assert size == 2 * 1024**3
    assert grown < 10_000  # KiB
