"""Where a program's output waits: in memory, then in a file that has no name."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from skillyard.sandbox.native.keeper import spool
from skillyard.sandbox.native.keeper.spool import IN_MEMORY, Spool


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
