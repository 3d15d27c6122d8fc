"""The probe of srt: a program looks round inside and tries to get out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skillyard.domain.sandbox.guarantees import LIMITS, WALLS, Level, Probe, Protection

NAME = "srt"
LOOK = """
import json, os, socket, sys
port, canary, server = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
def works(function):
    try: function()
    except OSError: return False
    return True
def writable(path):
    return works(lambda: os.close(os.open(path, os.O_WRONLY | os.O_CREAT)))
print(json.dumps({
    "status": open("/proc/self/status").read(),
    "spaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")},
    "root": [path for path in ("/x", "/etc/x", "/usr/x", "/dev/x", "/run/x") if writable(path)],
    "proc": [path for path in ("/proc/sys/kernel/hostname", "/proc/sysrq-trigger") if writable(path)],
    "reached": [name for name, function in {
        "a file of the host": lambda: open(canary),
        "a port of the host": lambda: socket.create_connection(("127.0.0.1", port), 2),
        "a process of the host": lambda: os.listdir(f"/proc/{server}/task") and os.stat(f"/proc/{server}/cwd"),
    }.items() if works(function)],
    "unix": works(lambda: socket.socket(socket.AF_UNIX).close()),
    "sizes": [os.statvfs(path).f_blocks * os.statvfs(path).f_frsize for path in ("/workspace", "/tmp", "/dev/shm")],
}))
"""
_SPACES = {
    "user_namespace": ("user", "the stage's user and srt's"),
    "mount_namespace": ("mnt", "the stage's root, and srt's in it"),
    "pid_namespace": ("pid", "the stage's and srt's"),
    "net_namespace": ("net", "srt's in the stage's, neither with a way out"),
    "ipc_namespace": ("ipc", "the stage; srt alone shares that of the host"),
    "uts_namespace": ("uts", "the stage; srt alone shares that of the host"),
    "cgroup_namespace": ("cgroup", "the stage; srt alone shares that of the host"),
}
WITHOUT = frozenset({"kernel_surface", "seccomp", "landlock", "memory", "cpus", "disk"})
"""The gaps that are accepted with the choice of srt."""
_NATIVE = "use the isolation 'native'"
_FILTER = "srt's filter refuses unix sockets and user namespaces, and lets all other system calls through"
_GAPS = {
    "kernel_surface": _FILTER,
    "seccomp": _FILTER,
    "landlock": "srt does not use it",
    "disk": "the size of a tmpfs bounds the bytes of files, and nothing bounds their number",
}
_ABILITIES = {
    "forwarding": Protection(Level.SUPERVISED, by="the agent connects inside"),
    "keeping": Protection(Level.MISSING, why="the agent keeps no program when others are ended", mend=_NATIVE),
}


def judge(
    seen: Mapping[str, Any],
    root: bool,
    disk_bytes: int,
    facts: Mapping[str, str],
    lacking: Mapping[str, str],
    egress: Protection,
) -> Probe:
    """Returns the probe from the output of :data:`LOOK`.

    ``root`` says whether the server is root, ``disk_bytes`` is the size that its places were given. ``lacking`` are the
    limits of control groups, each with the reason where there is none.
    """
    if seen["reached"]:
        return absent(f"a test sandbox reached {', '.join(seen['reached'])}", facts)
    if max(seen["sizes"]) > disk_bytes:
        return absent("the places for files are larger than the limit that they were given", facts)
    if seen["unix"]:
        return absent("srt did not filter system calls; its package lacks apply-seccomp for this processor", facts)
    status = dict(re.findall(r"^(\w+):\t(.*)$", str(seen["status"]), re.MULTILINE))
    found = {wall: _held(_apart(seen["spaces"], space), by) for wall, (space, by) in _SPACES.items()}
    no_new_privs = status["NoNewPrivs"] == "1"
    none = all(int(status[name], 16) == 0 for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"))
    found |= {
        "read_only_root": _held(not seen["root"], "read-only mounts of the stage, and of srt over them"),
        "private_proc": _held(_apart(seen["spaces"], "pid") and not seen["proc"], "srt's own /proc"),
        "non_root": _held(status["Uid"].split()[0] != "0", "another user than root, inside and outside"),
        "no_capabilities": _held(none and no_new_privs, "none is held, and no_new_privs keeps the bounding set idle"),
        "no_new_privs": _held(no_new_privs, "srt"),
        "own_uid": Protection(Level.KERNEL, by="a user id of its own for each sandbox")
        if root
        else Protection(Level.MISSING, why="an ordinary user has one id to give", mend="run the server as root"),
        "pids": Protection(Level.KERNEL, by="RLIMIT_NPROC in srt's user namespace"),
        "timeout": Protection(Level.SUPERVISED, by="the agent watches and kills, and the server after it"),
        "output": Protection(Level.SUPERVISED, by="the agent counts and ends the program"),
    }
    found |= {name: _counted(why) for name, why in lacking.items()}
    found |= {name: Protection(Level.MISSING, why=why, mend=_NATIVE) for name, why in _GAPS.items()}
    return Probe(NAME, True, found, {"kernel": _kernel(), **facts}, {**_ABILITIES, "egress": egress})


def absent(why: str, facts: Mapping[str, str]) -> Probe:
    """Returns the probe of a host where the backend cannot work at all."""
    missing = Protection(Level.MISSING, why=why)
    nothing = dict.fromkeys((*WALLS, *LIMITS), missing)
    return Probe(NAME, False, nothing, {"kernel": _kernel(), **facts, "why": why}, _ABILITIES)


def _counted(why: str) -> Protection:
    if not why:
        return Protection(Level.KERNEL, by="a control group of the sandbox, with room for srt itself")
    told = f"srt has no such limit, and no control group counts: {why}"
    return Protection(Level.MISSING, why=told, mend="run the server as root where control groups can be made")


def _held(stands: bool, by: str) -> Protection:
    return Protection(Level.KERNEL, by=by) if stands else Protection(Level.MISSING, why="a look from inside misses it")


def _apart(spaces: Mapping[str, str], name: str) -> bool:
    return spaces.get(name) not in (None, str(Path(f"/proc/self/ns/{name}").readlink()))


def _kernel() -> str:
    return Path("/proc/sys/kernel/osrelease").read_text(encoding="ascii").strip()
