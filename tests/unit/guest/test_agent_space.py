"""The namespaces of an agent that root makes, which may be there before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root alone makes namespaces so")

_LEAVES = """
import fcntl, json, os, signal, socket, struct, sys
from skillyard.guest.agent import space

kept, names = sys.argv[1], ("ipc", "net", "uts", "mnt", "cgroup")
before = {name: os.stat(f"/proc/self/ns/{name}").st_ino for name in names}
if kept:
    read, write = os.pipe()
    if child := os.fork():
        os.close(write)
        try:
            assert os.read(read, 1) == b"+"
            space.keep(child, kept)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        space.enter(kept)
    else:
        space.leave("inside")
        os.write(write, b"+")
        signal.pause()
else:
    space.leave("inside")
after = {name: os.stat(f"/proc/self/ns/{name}").st_ino for name in names}
lo = fcntl.ioctl(socket.socket(), 0x8913, struct.pack("16sH14x", b"lo", 0))
print(json.dumps({
    "own": [name for name in names if before[name] != after[name]],
    "host": socket.gethostname(),
    "up": struct.unpack("16sH14x", lo)[1] & 1,
}))
"""


@pytest.mark.parametrize("kept", [False, True])
def test_all_namespaces_are_left_or_entered_behind_the_end_of_who_left_them(tmp_path: Path, kept: bool) -> None:
    # A mount namespace is kept in those of lower numbers alone, which Linux 6.18 gives out by processor. A guest keeps
    # it in the first one of all.
    processor = str(min(os.sched_getaffinity(0)))
    alone = ["taskset", "--cpu-list", processor, "unshare", "--mount", "--propagation", "private", "--"]
    place = str(tmp_path) if kept else ""
    ran = subprocess.run([*alone, sys.executable, "-c", _LEAVES, place], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["own"] == ["ipc", "net", "uts", "mnt", "cgroup"]
    assert told["host"] == "inside"
    assert told["up"] == 1
