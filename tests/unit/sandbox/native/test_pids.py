"""No process of a sandbox can have its zygote's pid, however many it makes: in pid namespaces of our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, json, os, sys
from skillyard.sandbox.native.inside import walls
from skillyard.sandbox.native.linux import kernel

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return pid

def inside():
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("proc", "/proc", "proc", 0)
    if sys.argv[1] == "without":
        def write(path, text):
            raise FileNotFoundError(path)
        walls._write = write
    walls._pass_low_pids()
    seen = [child(lambda: None) for _ in range(3)]
    last = int(open("/proc/sys/kernel/pid_max").read()) - 2
    open("/proc/sys/kernel/ns_last_pid", "w").write(str(last))
    print(json.dumps([seen, [child(lambda: None) for _ in range(6)]]), flush=True)

kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID)
child(inside)
"""


@pytest.mark.parametrize(("way", "first"), [("with", 301), ("without", 3)])
def test_the_zygotes_pid_is_never_given(way: str, first: int) -> None:
    """It is 2. ``without`` the file that tells the kernel where to go on, as where a kernel has none."""
    ran = subprocess.run([sys.executable, "-c", SCRIPT, way], capture_output=True, text=True, timeout=60, check=False)
    if "unshare" in ran.stderr and os.geteuid():
        pytest.skip("no user namespaces here")
    assert ran.stdout, ran.stderr
    seen, wrapped = json.loads(ran.stdout)
    assert seen == [first, first + 1, first + 2], ran.stderr
    assert wrapped[0] > 1000
    assert min(wrapped) >= 300, "it came round and began behind the first"
    assert len(set(wrapped)) == 6
