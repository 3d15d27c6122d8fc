"""The probe of the oci backend: a program looks around in a container."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skillyard.domain.sandbox.guarantees import LIMITS, WALLS, Level, Probe, Protection
from skillyard.domain.sandbox.spec import SandboxSpec
from skillyard.sandbox.oci import container

LOOK = """
import json, os, socket, sys
def text(*paths):
    for path in paths:
        try:
            with open(path) as file:
                return file.read().strip()
        except OSError:
            pass
    return ""
def writable(path):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
        return True
    except OSError:
        return False
def size(path):
    told = os.statvfs(path)
    return told.f_blocks * told.f_frsize
group = "/sys/fs/cgroup/"
quota = text(group + "cpu/cpu.cfs_quota_us") + " " + text(group + "cpu/cpu.cfs_period_us")
import site
print(json.dumps({
    "status": text("/proc/self/status"),
    "spaces": {name: os.readlink("/proc/self/ns/" + name) for name in os.listdir("/proc/self/ns")},
    "processes": [int(name) for name in os.listdir("/proc") if name.isdigit()],
    "boot": text("/proc/sys/kernel/random/boot_id"), "release": os.uname().release, "name": os.uname().nodename,
    "interfaces": [name for _, name in socket.if_nameindex()],
    "root": [path for path in ("/x", "/etc/x", "/usr/x", "/dev/x", "/run/x", "/var/x", "/var/tmp/x") if writable(path)],
    "proc": [path for path in ("/proc/sys/kernel/hostname", "/proc/sysrq-trigger") if writable(path)],
    "counts_queues": os.path.exists(group + "memory.max"),
    "memory": text(group + "memory.max", group + "memory/memory.limit_in_bytes"),
    "queues": text(group + "memory/memory.kmem.tcp.limit_in_bytes"),
    "swap": text(group + "memory.swap.max", group + "memory/memory.memsw.limit_in_bytes"),
    "pids": text(group + "pids.max", group + "pids/pids.max"),
    "cpus": text(group + "cpu.max") or quota,
    "sizes": {place: size(place) for place in ("/workspace", "/tmp", "/dev/shm")},
    "python": list(sys.version_info[:2]), "machine": os.uname().machine, "packages": site.getsitepackages(),
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
WITHOUT = frozenset({"user_namespace", "landlock"})
"""Walls that containers do not have by themselves: the guarantees rest on the others."""
_MENDS = {
    "user_namespace": "set userns-remap in the engine's configuration, or use a rootless engine",
    "own_uid": "set another oci.uid for each server that shares the engine",
    "landlock": "use the isolation 'native'",
}
BOUNDED = "a control group of version 1, with a limit of its own for queues of TCP sockets, and none for other queues"
UNCOUNTED = "a control group of version 1, which counts no queues of sockets"
_NOT_SEEN = "it was not in force in a test container"
_LIMITS_MEND = "give the engine control groups of version 2, or run it as root"


def judge(
    seen: Mapping[str, Any], spec: SandboxSpec, processors: int, facts: Mapping[str, str], egress: Protection
) -> Probe:
    """Returns the probe, from what :data:`LOOK` told of a container made for ``spec``."""
    here = seen["boot"] == _boot()
    level = Level.KERNEL if here else Level.PROVIDER
    walls = {name: _held(held, name, level) for name, held in walls_of(seen, _spaces()).items()}
    walls["landlock"] = Protection(Level.MISSING, why="engines do not offer it", mend=_MENDS["landlock"])
    walls["own_uid"] = Protection(Level.MISSING, why="containers share one user id", mend=_MENDS["own_uid"])
    told = dict(facts) | {"guest_kernel": str(seen["release"]), "python": ".".join(map(str, seen["python"]))}
    abilities = {"forwarding": Protection(Level.SUPERVISED, by="the agent connects inside"), "egress": egress}
    found = {name: walls[name] for name in WALLS} | limits_of(seen, spec, processors, level)
    return Probe("oci", True, found, told, abilities)


def absent(why: str, facts: Mapping[str, str], mend: str = "", *, away: bool = False) -> Probe:
    """Returns the probe of a host where the backend cannot work; ``away`` says that it may soon."""
    nothing = Protection(Level.MISSING, why=why, mend=mend)
    protections = dict.fromkeys((*WALLS, *LIMITS), nothing)
    return Probe("oci", False, protections, {**facts, "why": why}, away=f"{why}; {mend}" if away else "")


def walls_of(seen: Mapping[str, Any], outer: Mapping[str, str]) -> dict[str, bool]:
    """Returns which walls stand, as :data:`LOOK` found them.

    ``outer`` are the namespaces outside, by kind.
    """
    status = dict(line.split(":\t", 1) for line in str(seen["status"]).splitlines() if ":\t" in line)
    spaces = seen["spaces"]
    found = {wall: spaces.get(space) not in (None, outer.get(space)) for wall, space in _SPACES.items()}
    found["net_namespace"] = found["net_namespace"] and seen["interfaces"] == ["lo"]
    capabilities = [int(value, 16) for name, value in status.items() if name.startswith("Cap")]
    return found | {
        "read_only_root": not seen["root"],
        "private_proc": min(seen["processes"]) == 1 and not seen["proc"],
        "non_root": "0" not in status["Uid"].split() and "0" not in status["Gid"].split(),
        "no_capabilities": bool(capabilities) and not any(capabilities),
        "no_new_privs": status.get("NoNewPrivs") == "1",
        "seccomp": status.get("Seccomp") == "2" and int(status.get("Seccomp_filters", "3")) >= 3,
    }


def _held(held: bool, name: str, level: Level) -> Protection:
    if held:
        return Protection(level, by="found in a test container")
    return Protection(Level.MISSING, why=_NOT_SEEN, mend=_MENDS.get(name, ""))


def limits_of(seen: Mapping[str, Any], spec: SandboxSpec, processors: int, level: Level) -> dict[str, Protection]:
    """Returns the limits that are in force, as :data:`LOOK` found them."""
    limits = spec.limits
    memory, pids = container.memory(limits), limits.pids + container.OVERHEAD_PIDS
    # Version 1 counts memory and swap together, version 2 swap alone.
    in_force = {
        "memory": seen["memory"] == str(memory) and seen["swap"] in ("0", str(memory), ""),
        "pids": seen["pids"] == str(pids),
        "cpus": _share(str(seen["cpus"])) == min(limits.cpus, processors),
    }
    found = {name: _limited(held, level, "a control group") for name, held in in_force.items()}
    if in_force["memory"] and not seen["counts_queues"]:
        bounded = seen["queues"] == str(container.queues(limits))
        found["memory"] = Protection(level, by=BOUNDED if bounded else UNCOUNTED)
    found["disk"] = _limited(
        seen["sizes"] == _rounded(limits), level, "the sizes of tmpfs; a part of it for each place"
    )
    for name in ("timeout", "output"):
        found[name] = Protection(Level.SUPERVISED, by="the agent watches and kills")
    return found


def _limited(held: bool, level: Level, by: str) -> Protection:
    if held:
        return Protection(level, by=by)
    return Protection(Level.MISSING, why=_NOT_SEEN, mend=_LIMITS_MEND)


def _rounded(limits: Any) -> dict[str, int]:
    """Returns the sizes of the places in whole pages."""
    return {place: -(-size // 4096) * 4096 for place, size in container.parts(limits).items()}


def _share(text: str) -> float:
    """Returns the processors that a quota and its period are worth; 0 where there is none."""
    try:
        quota, period = map(int, text.split())
    except ValueError:
        return 0.0
    return quota / period if period > 0 else 0.0


def _spaces() -> dict[str, str]:
    return {space: str(Path(f"/proc/self/ns/{space}").readlink()) for space in _SPACES.values()}


def _boot() -> str:
    """Returns the kernel's name of this boot, which tells this kernel from others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
