"""The agent's spools: any bytes, any bound, in memory and in a file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.guest.agent.spool import IN_MEMORY, Spool
from tests.unit.disks import disk_of

CAPS = st.sampled_from([1, 7, 1000, IN_MEMORY, IN_MEMORY + 1, 200_000, 1 << 30])
PIECES = st.lists(st.integers(0, 90_000), max_size=12)


@given(CAPS, PIECES, st.integers(1, 300_000))
def test_a_spool_keeps_the_last_bytes_of_a_stream(cap: int, sizes: list[int], most: int) -> None:
    whole = b""
    with tempfile.TemporaryDirectory() as directory:
        spool = Spool(cap, directory)
        for number, size in enumerate(sizes):
            piece = bytes([number]) * size
            whole += piece
            spool.append(piece)
            assert spool.size == len(whole)
            assert spool.first == max(0, len(whole) - cap)
        offset, read = spool.first, b""
        most = max(most, (len(whole) - offset) // 500)  # a million reads of a byte would prove no more
        while piece := spool.read(offset, most):
            assert len(piece) <= most
            offset += len(piece)
            read += piece
        assert read == whole[max(0, len(whole) - cap) :]
        assert list(Path(directory).iterdir()) == []
        spool.drop()
        assert spool.first == spool.size


def test_a_spool_without_room_keeps_what_it_has(tmp_path: Path) -> None:
    spool = Spool(1 << 20, str(tmp_path / "none"))
    spool.append(b"x" * 1000)
    with pytest.raises(OSError, match="No such file"):
        spool.append(b"y" * IN_MEMORY)
    assert spool.read(0, 5000) == b"x" * 1000


@pytest.mark.parametrize("room", [IN_MEMORY // 2, 2 * IN_MEMORY])
def test_a_full_disk_takes_nothing_of_the_bytes_before_and_gets_no_later_ones(tmp_path: Path, room: int) -> None:
    spool, whole = Spool(1 << 20, str(tmp_path)), b"".join(bytes([n]) * 40_000 for n in range(4))
    spool.append(whole[:40_000])
    with disk_of(room), pytest.raises(OSError, match="File too large"):
        spool.append(whole[40_000:])
    spool.append(b"later, when there is room again")
    assert 40_000 <= spool.size < len(whole)
    assert spool.read(0, 1 << 20) == whole[: spool.size]


def test_watchers_hear_of_more_and_of_the_end(tmp_path: Path) -> None:
    spool, heard = Spool(100, str(tmp_path)), []
    spool.watchers.add(lambda: heard.append((spool.size, spool.ended)))
    spool.append(b"abc")
    spool.end()
    assert heard == [(3, False), (3, True)]
