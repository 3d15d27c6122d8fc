"""What the exec backend can enforce on this host: found by running a program that looks around."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from skillyard.domain.sandbox.guarantees import PROTECTIONS, Level, Probe, Protection

LOOK = """
import json, os
def writable(path):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
        return True
    except OSError:
        return False
print(json.dumps({
    "status": open("/proc/self/status").read(),
    "spaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")},
    "pids": [name for name in os.listdir("/proc") if name.isdigit()],
    "root": [path for path in ("/x", "/etc/x", "/usr/x", "/dev/x") if writable(path)],
    "proc": [path for path in ("/proc/sys/kernel/hostname", "/proc/sysrq-trigger") if writable(path)],
}))
"""
_SPACES = {
    "user_namespace": "user",
    "mount_namespace": "mnt",
    "pid_namespace": "pid",
    "net_namespace": "net",
    "ipc_namespace": "ipc",
    "uts_namespace": "uts",
    "cgroup_namespace": "cgroup",
}
_LIMITS_MEND = "use the native backend"


def judge(seen: Mapping[str, object], host_uid: int, egress: Protection) -> Probe:
    """A probe from what :data:`LOOK` printed; ``host_uid`` is whom its processes are outside."""
    status = dict(re.findall(r"^(\w+):\t(.*)$", str(seen["status"]), re.MULTILINE))
    spaces = seen["spaces"]
    assert isinstance(spaces, dict)
    found = {
        name: spaces.get(space) not in (None, os.readlink(f"/proc/self/ns/{space}")) for name, space in _SPACES.items()
    }
    capabilities = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    found |= {
        "read_only_root": not seen["root"],
        "private_proc": found["pid_namespace"] and not seen["proc"],
        "non_root": host_uid != 0 and status["Uid"].split()[0] != "0",
        "no_capabilities": all(int(status[name], 16) == 0 for name in capabilities),
        "no_new_privs": status["NoNewPrivs"] == "1",
        "seccomp": status["Seccomp"] == "2",
    }
    abilities = {
        "forwarding": Protection(Level.SUPERVISED, by="the agent connects inside"),
        "terminals": Protection(Level.KERNEL, by="bubblewrap's own file system of terminals"),
        "egress": egress,
    }
    return Probe("exec", ready=True, protections=_protections(found), facts=_facts(), abilities=abilities)


def absent(why: str) -> Probe:
    """The probe of a host where the backend cannot work at all."""
    nothing = {name: Protection(Level.MISSING, why=why) for name in PROTECTIONS}
    return Probe("exec", ready=False, protections=nothing, facts=_facts())


def _protections(found: Mapping[str, bool]) -> dict[str, Protection]:
    table = {
        name: Protection(Level.MISSING, why="bubblewrap alone does not give it", mend=_LIMITS_MEND)
        for name in PROTECTIONS
    }
    table |= {name: Protection(Level.KERNEL, by="bubblewrap") for name, held in found.items() if held}
    for name in ("timeout", "output"):
        table[name] = Protection(Level.SUPERVISED, by="the agent watches and kills")
    return table


def _facts() -> dict[str, str]:
    return {
        "kernel": Path("/proc/sys/kernel/osrelease").read_text(encoding="ascii").strip(),
    }
