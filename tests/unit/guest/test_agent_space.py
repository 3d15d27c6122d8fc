"""The namespaces of an agent that root makes, of which some may be there before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root alone makes namespaces so")

_LEAVES = """
import fcntl, json, os, socket, struct, subprocess, sys
from skillyard.guest.agent import space

made, names = sys.argv[1], sys.argv[2].split(",") if sys.argv[2] else []
for name in names:
    open(f"{made}/{name}", "w").close()
if names:
    pins = [f"--{name}={made}/{name}" for name in names]
    subprocess.run(["unshare", *pins, "sh", "-c", "ip link set lo up || ifconfig lo up"], check=True)
before = {name: os.stat(f"/proc/self/ns/{name}").st_ino for name in ("ipc", "net", "uts", "mnt", "cgroup")}
space.leave("inside", made if names else "")
after = {name: os.stat(f"/proc/self/ns/{name}").st_ino for name in before}
lo = fcntl.ioctl(socket.socket(), 0x8913, struct.pack("16sH14x", b"lo", 0))
print(json.dumps({
    "own": [name for name in before if before[name] != after[name]],
    "pinned": [name for name in names if os.stat(f"{made}/{name}").st_ino == after[name]],
    "host": socket.gethostname(),
    "up": struct.unpack("16sH14x", lo)[1] & 1,
}))
"""


@pytest.mark.parametrize("names", ["", "ipc,net,uts"])
def test_all_namespaces_are_left_whoever_made_them(tmp_path: Path, names: str) -> None:
    alone = ["unshare", "--mount", "--propagation", "private", "--"]
    ran = subprocess.run(
        [*alone, sys.executable, "-c", _LEAVES, str(tmp_path), names], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["own"] == ["ipc", "net", "uts", "mnt", "cgroup"]
    assert told["pinned"] == [name for name in names.split(",") if name]
    assert told["host"] == "inside"
    assert told["up"] == 1
