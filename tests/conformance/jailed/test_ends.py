"""A server whose root lacks CAP_KILL ends its processes of other users all the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skillyard.jailed.pool import NO_ACCOUNT

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's processes stay its own"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed"),
]
BOUND_S = 60
_POOL = """
import asyncio, json, os
from skillyard.config.storage import SchemaSettings
from skillyard.jailed.pool import NO_ACCOUNT, JailedPool
from tests.conformance.jailed.evil import EVIL

def user(child):
    return next(int(line.split()[1]) for line in open(f"/proc/{child}/status") if line.startswith("Uid:"))

async def main():
    pool = JailedPool(NO_ACCOUNT, SchemaSettings(check_s=20))
    evil = EVIL["references that multiply with the depth"]
    await pool.check("a", "small", {"type": "object"}, b"{}")
    [first] = [each._process.pid for each in pool._children]
    users = [user(first)]
    try:
        async with asyncio.timeout(0.5):
            await pool.check("a", "x", evil.schema, json.dumps(evil.value).encode())
    except TimeoutError:
        pass
    lives = [os.path.exists(f"/proc/{first}")]
    await pool.check("a", "small", {"type": "object"}, b"{}")
    [second] = [each._process.pid for each in pool._children]
    await pool.close()
    print(json.dumps({"users": users, "lives": [*lives, os.path.exists(f"/proc/{second}")]}))

asyncio.run(main())
"""
_KILL = """
import asyncio, json, os, sys
from skillyard.own_process import kill_own
try:
    asyncio.run(kill_own(os.pidfd_open(int(sys.argv[1]))))
    print(json.dumps(""))
except PermissionError as error:
    print(json.dumps(error.strerror))
"""


def test_a_check_that_hangs_is_ended_by_a_process_of_its_user() -> None:
    told = _without("-kill", _POOL)
    assert told == {"users": [NO_ACCOUNT], "lives": [False, False]}


@pytest.mark.parametrize(
    ("lacks", "words"), [("-kill", ""), ("-kill,-setuid", "give the server CAP_KILL, or CAP_SETUID")]
)
def test_one_that_cannot_be_killed_is_told_with_the_mend(lacks: str, words: str) -> None:
    with subprocess.Popen(["sleep", "600"], user=NO_ACCOUNT) as other:
        try:
            told = _without(lacks, _KILL, str(other.pid))
            assert words in told
            assert bool(told) == bool(words)
            if not words:
                assert other.wait(BOUND_S) == -9
            assert (other.poll() is None) == bool(words)
        finally:
            other.kill()


def _without(capabilities: str, source: str, *args: str) -> Any:
    """Returns what a program tells that root runs without these capabilities."""
    words = ["setpriv", f"--bounding-set={capabilities}", sys.executable, "-c", source, *args]
    root = str(Path(__file__).parents[3])
    done = subprocess.run(words, capture_output=True, text=True, timeout=BOUND_S, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
