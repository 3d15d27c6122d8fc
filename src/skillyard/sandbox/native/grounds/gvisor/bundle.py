"""The OCI bundle of a sandbox: its config.json (OCI runtime-spec 1.0)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from skillyard.sandbox.native.grounds.gvisor import filters
from skillyard.sandbox.native.grounds.interpreter import Interpreter
from skillyard.sandbox.native.grounds.namespaces.zygote import environment
from skillyard.sandbox.native.inside import walls

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
    told = [packages, list(contents.preload), contents.disk_bytes, contents.processes, filters.assembled()]
    return [contents.python.executable, "-I", "-S", "-B", "-c", _START, json.dumps(told)]
