"""The probe of the oci backend: a program looks around in a container."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from inspect import getsource
from pathlib import Path
from typing import Any

from skillyard.domain.errors import SandboxFault
from skillyard.domain.foreign_json import BadJson, parse_json
from skillyard.domain.package.platforms import interpreter
from skillyard.domain.sandbox import guarantees
from skillyard.domain.sandbox.guarantees import OWN_KERNEL, WALLS, Level, Probe, Protection
from skillyard.domain.sandbox.spec import SandboxSpec
from skillyard.sandbox.oci import container

LOOK = (
    f"""{getsource(interpreter)}"""
    + """
import ctypes, json, os, socket, sys
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
    "status": text("/proc/self/status"), "no_new_privs": ctypes.CDLL(None).prctl(39, 0, 0, 0, 0),
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
    "interpreter": interpreter(),
}))
"""
)
_PLACE = re.compile(r"/[A-Za-z0-9._+/-]{1,500}")
"""Where an interpreter may say that it looks for packages."""
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
absent = partial(guarantees.absent, "oci")
BOUNDED = "a control group of version 1, with a limit of its own for queues of TCP sockets, and none for other queues"
UNCOUNTED = "a control group of version 1, which counts no queues of sockets"
_GROUP_FILES = {
    "memory": ("memory.limit_in_bytes", "memory.max"),
    "swap": ("memory.memsw.limit_in_bytes", "memory.swap.max"),
    "pids": ("pids.max", "pids.max"),
    "cpus": ("cpu.cfs_quota_us cpu.cfs_period_us", "cpu.max"),
}
"""Files of a control group, of version 1 and of version 2."""
_NOT_SEEN = "it was not in force in a test container"
_LIMITS_MEND = "give the engine control groups of version 2, or run it as root"


def account(text: bytes, said: bytes, image: str) -> dict[str, Any]:
    """Returns what :data:`LOOK` told of a container of ``image``. Raises SandboxFault for another form."""
    try:
        seen = parse_json(text)
    except BadJson:
        seen = None
    match seen:
        case {"python": [int(), int()], "packages": [str(first), *_]} if _PLACE.fullmatch(first):
            return dict(seen)
    raise SandboxFault(f"python does not run in {image}: {said.decode('utf-8', 'replace')[-300:]}")


def judge(
    seen: Mapping[str, Any], spec: SandboxSpec, processors: int, facts: Mapping[str, str], egress: Protection
) -> Probe:
    """Returns the probe, from what :data:`LOOK` told of a container made for ``spec``."""
    here = seen["boot"] == _boot()
    level = Level.KERNEL if here else Level.PROVIDER
    walls = {name: _held(held, name, level) for name, held in walls_of(seen, spaces_of_host()).items()}
    walls["landlock"] = Protection(Level.MISSING, why="engines do not offer it", mend=_MENDS["landlock"])
    walls["own_uid"] = Protection(Level.MISSING, why="containers share one user id", mend=_MENDS["own_uid"])
    told = dict(facts) | {"guest_kernel": str(seen["release"]), "python": ".".join(map(str, seen["python"]))}
    abilities = {"forwarding": Protection(Level.SUPERVISED, by="the agent connects inside"), "egress": egress}
    found = {name: walls[name] for name in WALLS} | limits_of(seen, spec, processors, level)
    if not here and facts.get("engine_kernel", seen["release"]) != seen["release"]:
        found[OWN_KERNEL] = _own_kernel(seen.get("outside") or {})
    return Probe("oci", True, found, told, abilities)


def facts_of(version: Mapping[str, Any], info: Mapping[str, Any], runtime: str) -> dict[str, str]:
    """Returns what an engine tells of itself, as texts."""
    parts = [str(part.get("Name", "")) for part in version.get("Components") or ()]
    return {
        "engine": "podman" if any("podman" in name.lower() for name in parts) else "docker",
        "engine_version": str(version.get("Version", "")),
        "api_version": str(version.get("ApiVersion", "")),
        "runtime": runtime or str(info.get("DefaultRuntime") or ""),
        "engine_kernel": str(version.get("KernelVersion", "")),
        "cgroup_version": str(info.get("CgroupVersion", "")),
    }


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
        "no_new_privs": status.get("NoNewPrivs", str(seen["no_new_privs"])) == "1",  # not every kernel lists it
        "seccomp": status.get("Seccomp") == "2" and int(status.get("Seccomp_filters", "3")) >= 3,
    }


def _held(held: bool, name: str, level: Level) -> Protection:
    if held:
        return Protection(level, by="found in a test container")
    return Protection(Level.MISSING, why=_NOT_SEEN, mend=_MENDS.get(name, ""))


def _own_kernel(outside: Mapping[str, str]) -> Protection:
    if outside.get("seccomp") == "2":
        by = "another kernel answers in a test container, and the process that is one was filtered on this host"
        return Protection(Level.KERNEL, by=by)
    return Protection(Level.PROVIDER, by="another kernel than the engine's answers in a test container")


def seen_outside(pid: int, handle: str) -> dict[str, str]:
    """Returns how this host holds a container; nothing where it runs on another host.

    A runtime with a kernel of its own shows no control groups inside.
    """
    found: dict[str, str] = {}
    try:
        lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text("utf-8").splitlines()]
        status = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
    except (OSError, ValueError):
        return found
    for _, controllers, path in lines:
        if handle not in path:  # the number means another process here, or none
            continue
        for mounted in controllers.split(","):
            for name, file in _GROUP_FILES.items():
                with suppress(OSError):
                    found[name] = " ".join(
                        Path(f"/sys/fs/cgroup/{mounted}{path}/{part}").read_text("ascii").strip()
                        for part in file[0 if mounted else 1].split()
                    )
    if found:
        found["seccomp"] = next((line.split()[1] for line in status.splitlines() if line.startswith("Seccomp:")), "")
    return found


def limits_of(seen: Mapping[str, Any], spec: SandboxSpec, processors: int, level: Level) -> dict[str, Protection]:
    """Returns the limits that are in force, as :data:`LOOK` found them."""
    limits, outside = spec.limits, seen.get("outside") or {}
    by, counts = "a control group", seen["counts_queues"]
    if outside and level is Level.PROVIDER:  # another kernel on this host
        # All memory of such a kernel is that of a process here, its sockets' too.
        seen, level, by, counts = {**seen, **outside}, Level.KERNEL, "a control group, seen on this host", True
    memory, pids = container.memory(limits), limits.pids + container.OVERHEAD_PIDS
    # Version 1 counts memory and swap together, version 2 swap alone.
    in_force = {
        "memory": seen["memory"] == str(memory) and seen["swap"] in ("0", str(memory), ""),
        "pids": seen["pids"] == str(pids),
        "cpus": _share(str(seen["cpus"])) == min(limits.cpus, processors),
    }
    found = {name: _limited(held, level, by) for name, held in in_force.items()}
    if in_force["memory"] and not counts:
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


def spaces_of_host() -> dict[str, str]:
    return {space: str(Path(f"/proc/self/ns/{space}").readlink()) for space in _SPACES.values()}


def _boot() -> str:
    """Returns the kernel's name of this boot, which tells this kernel from others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
