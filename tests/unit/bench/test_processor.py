"""Groups that count processor time are removed when their benchmark is dead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skillyard.bench import processor


def test_a_new_account_removes_those_of_dead_benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "ACCOUNTS", (str(tmp_path),))
    (tmp_path / "cpuacct.usage").write_text("0\n")
    dead, alive, other = f"skillyard-bench-{2**22 + 1}-native", f"skillyard-bench-{os.getpid()}-a", "skillyard-7"
    for name in (dead, alive, other):
        (tmp_path / name).mkdir()
    account = processor.Account(f"skillyard-bench-{os.getpid()}-b")
    assert account.place == tmp_path / f"skillyard-bench-{os.getpid()}-b"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == sorted(
        [alive, other, account.place.name]
    )
    account.close()
