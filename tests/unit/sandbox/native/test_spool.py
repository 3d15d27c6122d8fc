"""Where a program's output waits: in memory, then in a file that has no name."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.sandbox.native.keeper import spool
from skillyard.sandbox.native.keeper.follower import WINDOW, Follower
from skillyard.sandbox.native.keeper.spool import IN_MEMORY, Dropped, Spool
from tests.unit.disks import disk_of


def test_a_large_stream_leaves_no_name_in_its_directory_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a file had a name: a keeper that is killed here leaves it behind")

    monkeypatch.setattr(os, "unlink", never)
    stream = Spool(str(tmp_path))
    stream.append(b"a" * IN_MEMORY)
    stream.append(b"b" * IN_MEMORY)
    assert list(tmp_path.iterdir()) == []
    assert stream.read(IN_MEMORY - 1, 2) == b"ab"
    stream.drop()


def test_a_file_system_that_has_only_names_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def without(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not here")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", without)
    stream = Spool(str(tmp_path))
    stream.append(b"a" * 2 * IN_MEMORY)
    assert list(tmp_path.iterdir()) == []
    assert stream.read(0, 3 * IN_MEMORY) == b"a" * 2 * IN_MEMORY
    stream.drop()


def test_what_a_killed_keeper_left_is_cleared(tmp_path: Path) -> None:
    (tmp_path / "0a1b").write_bytes(b"half a stream")
    spool.clear(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@given(
    kept=st.sampled_from([0, 1, 100, IN_MEMORY, IN_MEMORY + 1, 3 * IN_MEMORY]),
    pieces=st.lists(st.integers(0, 2 * IN_MEMORY), max_size=12),
    seed=st.integers(0, 255),
)
def test_a_ring_has_the_true_tail(kept: int, pieces: list[int], seed: int) -> None:
    whole = bytearray()
    with tempfile.TemporaryDirectory() as directory:
        ring = Spool(directory, kept=kept)
        for number, size in enumerate(pieces):
            data = bytes((seed + number + at) % 251 for at in range(min(size, 64))) * (size // 64 + 1)
            ring.append(data)
            whole += data
            assert (ring.length, ring.first) == (len(whole), max(0, len(whole) - kept))
            assert _all_of(ring, ring.first) == whole[ring.first :]
        if ring.first:
            with pytest.raises(Dropped) as raised:
                ring.read(ring.first - 1, 10)
            assert raised.value.first == ring.first
        held = os.fstat(ring._fd).st_size if ring._fd >= 0 else len(ring._memory)
        assert held <= max(kept, 0), "neither memory nor disk hold more than the ring"
        ring.drop()


def _all_of(ring: Spool, offset: int) -> bytes:
    found = b""
    while data := ring.read(offset + len(found), 1 << 20):
        found += data
    return found


class Reader:
    """Takes what a follower pushes."""

    def __init__(self, stream: Spool, offset: int = 0) -> None:
        self.got = b""
        self.why: dict[str, Any] = {}
        self.follower = Follower("stdout", stream, offset, self._take)
        self.follower.pump()

    def _take(self, why: dict[str, Any], data: bytes) -> None:
        assert not self.why, "nothing comes after the last piece"
        self.got += data
        self.why = why


def test_a_reader_that_does_not_take_is_sent_a_window(tmp_path: Path) -> None:
    stream = Spool(str(tmp_path))
    slow, quick = Reader(stream), Reader(stream)
    for _ in range(20):
        stream.append(b"x" * IN_MEMORY)
        slow.follower.pump()
        quick.follower.pump()
        quick.follower.took(len(quick.got))
    assert len(slow.got) == WINDOW
    assert len(quick.got) == 20 * IN_MEMORY
    stream.closed = stream.final = True
    while not slow.why:
        slow.follower.took(len(slow.got))
    assert (len(slow.got), slow.why) == (20 * IN_MEMORY, {"end": True})
    quick.follower.pump()
    assert quick.why == {"end": True}
    stream.drop()


def test_a_reader_of_a_ring_that_falls_behind_is_told_where_to_go_on(tmp_path: Path) -> None:
    stream = Spool(str(tmp_path), kept=1000)
    reader = Reader(stream)
    stream.append(b"a" * 500)
    reader.follower.pump()
    stream.append(b"b" * 2000)
    reader.follower.pump()
    assert (reader.got, reader.why) == (b"a" * 500, {"dropped": 1500})
    later = Reader(stream, 1500)
    assert later.got == b"b" * 1000
    stream.drop()


def test_a_closed_stream_of_a_living_program_is_not_at_its_end(tmp_path: Path) -> None:
    """A worker that never got its request closes its streams, and another one goes on with them."""
    stream = Spool(str(tmp_path))
    stream.closed = True
    reader = Reader(stream)
    assert reader.why == {}
    stream.closed = False
    stream.append(b"again")
    stream.closed = stream.final = True
    reader.follower.pump()
    assert (reader.got, reader.why) == (b"again", {"end": True})
    stream.drop()


@pytest.mark.parametrize("kept", [None, 3 * IN_MEMORY])
@pytest.mark.parametrize("room", [IN_MEMORY // 2, 2 * IN_MEMORY])
def test_a_full_disk_takes_nothing_of_the_bytes_before_and_gets_no_later_ones(
    tmp_path: Path, room: int, kept: int | None
) -> None:
    stream, pieces = Spool(str(tmp_path), kept=kept), [bytes([n]) * 40_000 for n in range(4)]
    stream.append(pieces[0])
    with disk_of(room):
        taken = 1 + sum(_taken(stream, piece) for piece in pieces[1:])
    assert 0 < taken < 4
    stream.append(b"later, when there is room again")
    whole = b"".join(pieces[:taken])
    assert (stream.length, stream.read(0, stream.length)) == (len(whole), whole)
    stream.drop()


def _taken(stream: Spool, piece: bytes) -> bool:
    before = stream.length
    with suppress(OSError):
        stream.append(piece)
    return stream.length > before
