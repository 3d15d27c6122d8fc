"""Processes that a sandbox is not cleared of."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[3] / "src"
SCRIPT = """
{beside}
{python} -I -c 'import sys; sys.path.insert(0, "{src}")
from skillyard.guest.clearing import clear, is_clear
print(is_clear("{place}"), clear("{place}"))'
"""


@pytest.mark.ordinary
@pytest.mark.parametrize(("seconds", "left"), [("0.3", "False []"), ("1000", "False ['the process 2']")])
def test_one_that_is_just_ending_is_waited_for_and_no_other(tmp_path: Path, seconds: str, left: str) -> None:
    """The process that told the end of a program has a moment to end itself: the host may hear of it before."""
    assert cleared(tmp_path, f"sleep {seconds} &") == left


# clone(CLONE_VM | CLONE_PARENT | SIGCHLD); the child does it again, and the parent ends.
HOPS = "b838000000 bf11810000 31f6 31d2 4531d2 4531c0 0f05 85c0 74e6 78e4 b83c000000 31ff 0f05"
HOPPER = f"""
{{python}} -I -c '
import ctypes, mmap, os
os.setsid()
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("{HOPS}"))
os.close(1)
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()' &
wait
"""


@pytest.mark.ordinary
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="it is machine code")
def test_one_that_goes_on_as_another_before_it_is_looked_at_is_not_overlooked(tmp_path: Path) -> None:
    """Each lives for microseconds, and the look finds none of them at work."""
    is_clear, *left = cleared(tmp_path, HOPPER.format(python=sys.executable)).split()
    assert (is_clear, "process" in left[1]) == ("False", True)


@pytest.mark.ordinary
def test_one_without_others_is_clear_already(tmp_path: Path) -> None:
    assert cleared(tmp_path, "true") == "True []"


def cleared(place: Path, beside: str) -> str:
    """Returns whether a sandbox with the processes of a shell's words in it was clear, and what is left of it."""
    (place / "workspace").mkdir()
    text = SCRIPT.format(beside=beside, python=sys.executable, src=SRC, place=place / "workspace")
    words = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc", "/bin/sh", "-c"]
    done = subprocess.run([*words, text], capture_output=True, text=True, timeout=60)
    if "Operation not permitted" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")
    assert not done.returncode, done.stderr
    return done.stdout.strip()
