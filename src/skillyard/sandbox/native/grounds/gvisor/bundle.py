"""The OCI bundle of a sandbox: its config.json (OCI runtime-spec 1.0), and the filters that its init installs."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from skillyard.sandbox.native.grounds.interpreter import Interpreter
from skillyard.sandbox.native.grounds.namespaces.zygote import environment
from skillyard.sandbox.native.inside import walls
from skillyard.sandbox.native.linux import bpf, kernel, seccomp
from skillyard.sandbox.native.linux.syscall_numbers import numbers

ROOTFS, SHOW, STATE, BUNDLE = "/rootfs", "/show", "/state", "/bundle"

_START = (
    f"import sys, json; sys.path.append({walls.CODE_ROOT!r});"
    " from skillyard.sandbox.native.grounds.gvisor.inside import main; main(*json.loads(sys.argv[1]))"
)
_INIT_CAPABILITIES = (
    "CAP_CHOWN", "CAP_KILL", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN",
)  # fmt: skip
"""Of our init, in the eyes of gVisor's kernel only: to mount, and to become somebody else."""
_NAMESPACES = ("pid", "network", "ipc", "uts", "mount")


@dataclass(frozen=True, slots=True)
class Contents:
    """What the inside needs to know. Sizes in bytes."""

    python: Interpreter
    packages: str
    preload: Sequence[str]
    disk_bytes: int
    memory_bytes: int
    processes: int


def config(contents: Contents) -> bytes:
    """config.json for the root at ROOTFS."""
    spec: dict[str, Any] = {
        "ociVersion": "1.0.0",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": _arguments(contents),
            "env": [f"{name}={value}" for name, value in environment(contents.python).items()],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), _INIT_CAPABILITIES),
        },
        "root": {"path": ROOTFS, "readonly": True},
        "hostname": walls.HOSTNAME,
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}, *_shown()],
        "linux": {
            "namespaces": [{"type": kind} for kind in _NAMESPACES],
            "resources": {"memory": {"limit": contents.memory_bytes}},
        },
    }
    return json.dumps(spec, separators=(",", ":")).encode()


def _shown() -> Iterator[dict[str, Any]]:
    """Slaves of the keeper's mounts: what it hangs in later appears inside."""
    for name, target in walls.SHOWN.items():
        options = ["ro", "rbind", "rslave", "nosuid", "nodev"]
        yield {"destination": target, "type": "bind", "source": f"{SHOW}/{name}", "options": options}


def _arguments(contents: Contents) -> list[str]:
    packages = contents.python.packages if contents.packages else ""
    told = [packages, list(contents.preload), contents.disk_bytes, contents.processes, assembled_filters()]
    return [contents.python.executable, "-I", "-S", "-B", "-c", _START, json.dumps(told)]


_TYPE = 0xF000


def assembled_filters() -> list[str]:
    """In the order in which they are installed, in hexadecimal. Behind the closing one no further one goes in."""
    made = (_no_devices(), seccomp.large_filter(), seccomp.closing_filter())
    return [bpf.assemble(program).hex() for program in made]


def _no_devices() -> list[bpf.Instruction]:
    """gVisor lets anybody make device files, and opens those that it knows, wherever they are (mknod(2))."""
    nr = numbers(kernel.ARCH)
    program = seccomp.head(kernel.ARCH)
    for name, mode in (("mknod", bpf.ARG1), ("mknodat", bpf.ARG2)):
        if name in nr:
            program += bpf.when(nr[name], _neither(mode, stat.S_IFCHR, stat.S_IFBLK))
    return [*program, bpf.ALLOW]


def _neither(mode: int, one: int, other: int) -> list[bpf.Instruction]:
    steps = [(bpf.LOAD, 0, 0, mode), (bpf.AND, 0, 0, _TYPE), (bpf.JEQ, 2, 0, one), (bpf.JEQ, 1, 0, other)]
    return [*steps, bpf.ALLOW, bpf.refuse()]
