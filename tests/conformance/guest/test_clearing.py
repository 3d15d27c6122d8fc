"""Processes that a sandbox is not cleared of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[3] / "src"
SCRIPT = """
sleep {seconds} &
{python} -I -c 'import sys; sys.path.insert(0, "{src}")
from skillyard.guest.clearing import clear
print(clear("{place}"))'
"""


@pytest.mark.ordinary
@pytest.mark.parametrize(("seconds", "left"), [("0.3", "[]"), ("1000", "['the process 2']")])
def test_one_that_is_just_ending_is_waited_for_and_no_other(tmp_path: Path, seconds: str, left: str) -> None:
    """The process that told the end of a program has a moment to end itself: the host may hear of it before."""
    (tmp_path / "workspace").mkdir()
    text = SCRIPT.format(seconds=seconds, python=sys.executable, src=SRC, place=tmp_path / "workspace")
    words = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc", "/bin/sh", "-c"]
    done = subprocess.run([*words, text], capture_output=True, text=True, timeout=60)
    if "Operation not permitted" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")
    assert done.stdout.strip() == left, done.stderr
