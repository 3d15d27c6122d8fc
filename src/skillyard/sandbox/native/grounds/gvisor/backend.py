"""The gVisor backend: the sandbox port over a keeper of runsc sandboxes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from skillyard.config.backends import GvisorSettings, NativeSettings
from skillyard.domain.errors import SkillyardError
from skillyard.domain.sandbox.guarantees import LIMITS, OWN_KERNEL, WALLS, Level, Nature, Probe, Protection
from skillyard.domain.sandbox.spec import Prepared, SandboxSpec
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.grounds.gvisor import runsc
from skillyard.sandbox.native.grounds.gvisor.runsc import MEND
from skillyard.sandbox.native.probe import (
    KEEPS,
    Prober,
    by_kernel,
    counted,
    look_inside,
    own_uid,
    sandbox_to_look_at,
    texts_of,
)
from skillyard.sandbox.registry import Kind, Place


class OutsideProber(Prober, Protocol):
    """A backend that also tells how its sandboxes look from the host."""

    async def outside(self, handle: str) -> dict[str, Any]: ...


_LOOK = """
import ctypes, json, os, socket
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines() if ":" in line)
try:
    open("/etc/probe", "w")
    written = True
except OSError:
    written = False
print(json.dumps({
    "status": {name: value.strip() for name, value in status.items()}, "written": written, "uid": os.getuid(),
    "no_new_privs": ctypes.CDLL(None).prctl(39, 0, 0, 0, 0), "interfaces": [name for _, name in socket.if_nameindex()],
    "processes": [int(name) for name in os.listdir("/proc") if name.isdigit()], "release": os.uname().release,
    "init": os.listdir("/proc/1"), "name": os.uname().nodename}))
"""
_BOUND_MS = 20_000
_ABILITIES = {
    "keeping": Protection(Level.SUPERVISED, by=KEEPS),
    "terminals": Protection(
        Level.MISSING,
        why="gVisor's own terminals do not give a program signals of its size, of keys and of the end",
        mend="use the isolation 'native' for programs on a terminal",
    ),
    "egress": Protection(
        Level.MISSING,
        why="gVisor's network stack is its own, and the host's gate cannot listen in it",
        mend="use the isolation 'native' for runs that need a network",
    ),
    "forwarding": Protection(
        Level.MISSING,
        why="gVisor's network stack is its own, and the host can open no socket in it",
        mend="use the isolation 'native' for ports that are to be reached",
    ),
}
_SPACES = {
    "user_namespace": ("user", "gVisor's users; the sentry in a user namespace with one id"),
    "mount_namespace": ("mnt", "gVisor's file tree over a gofer; both behind a root that holds an allow-list"),
    "pid_namespace": ("pid", "gVisor's process table; the sentry in a pid namespace of its own"),
    "net_namespace": ("net", "gVisor's network stack, loopback only; the sentry in an empty network namespace"),
    "ipc_namespace": ("ipc", "gVisor's IPC; the sentry in an IPC namespace of its own"),
    "uts_namespace": ("uts", "gVisor's host name; the sentry in a UTS namespace of its own"),
    "cgroup_namespace": ("cgroup", "gVisor's control groups; the sentry in a cgroup namespace of its own"),
}


async def probe(backend: OutsideProber) -> Probe:
    """Makes a sandbox and looks at it from inside and outside. Never raises: the result has the reason.

    gVisor's kernel stands between foreign code and the host's. A wall counts as ``kernel`` where gVisor's wall and
    the host's wall round the sentry both stand, and ``by`` names the two.
    """
    facts: dict[str, Any] = {}
    try:
        facts = await backend.facts()
        inside, outside = await _look(backend)
    except SkillyardError as error:
        return absent(error.message, _texts(facts), mend=_mend(error.message))
    texts = _texts(facts) | {"platform": str(outside["platform"]), "guest_kernel": str(inside["release"])}
    return Probe("gvisor", True, {**_walls(inside, outside, facts), **_limits(facts)}, texts, _ABILITIES)


def absent(why: str, texts: dict[str, str], *, mend: str) -> Probe:
    """Returns the probe of a host where the backend cannot work at all."""
    missing = Protection(Level.MISSING, why=why, mend=mend)
    return Probe("gvisor", False, dict.fromkeys((*WALLS, *LIMITS), missing), {**texts, "why": why}, _ABILITIES)


async def _look(backend: OutsideProber) -> tuple[dict[str, Any], dict[str, Any]]:
    async with sandbox_to_look_at(backend) as sandbox:
        outside = await backend.outside(sandbox.handle)
        return await look_inside(sandbox, _LOOK, bound_ms=_BOUND_MS), outside


def _walls(inside: dict[str, Any], outside: dict[str, Any], facts: dict[str, Any]) -> dict[str, Protection]:
    status, sentry = inside["status"], outside["status"]
    apart = {
        wall: outside["spaces"].get(space) not in (None, os.readlink(f"/proc/self/ns/{space}"))
        for wall, (space, _) in _SPACES.items()
    }
    filtered = sentry.get("Seccomp") == "2"
    found = {wall: _held(apart[wall], by) for wall, (_, by) in _SPACES.items()}
    if inside["interfaces"] != ["lo"]:
        found["net_namespace"] = Protection(Level.MISSING, why="other interfaces than loopback are there")
    caps = [name for name in status if name.startswith("Cap")]
    no_caps = bool(caps) and all(int(status[name], 16) == 0 for name in caps)
    found |= {
        "read_only_root": _held(not inside["written"], "gVisor's mounts, and the host's that the gofer has"),
        "private_proc": _held(
            min(inside["processes"]) == 1 and not inside["init"], "gVisor's own /proc; nothing of the host's is in it"
        ),
        "non_root": _held(
            inside["uid"] != 0 and (os.geteuid() != 0 or 0 not in outside["uids"]),
            "another user than root inside, and runsc as one outside",
        ),
        "no_capabilities": _held(no_caps, "none in gVisor; the sentry's are of its user namespace only"),
        "no_new_privs": _held(
            inside["no_new_privs"] == 1 and sentry.get("NoNewPrivs") == "1", "fixed in gVisor, and set for the sentry"
        ),
        "seccomp": _held(
            status["Seccomp"] == "2" and filtered,
            "our filter before gVisor's calls, runsc's before the host's: no call of foreign code reaches the host",
        ),
        "landlock": _held(
            filtered and apart["mount_namespace"],
            "in its place: the sentry opens no file of the host, its gofer only what hangs in its root",
        ),
        "own_uid": own_uid(facts, "a user id of its own for each sandbox's runsc"),
    }
    own_kernel = _held(
        filtered and inside["release"] != os.uname().release, "gVisor's kernel answers every system call of programs"
    )
    return {wall: found[wall] for wall in WALLS} | {OWN_KERNEL: own_kernel}


def _held(stands: bool, by: str) -> Protection:
    return by_kernel(by, stands)


def _limits(facts: dict[str, Any]) -> dict[str, Protection]:
    found = {
        "memory": Protection(Level.SUPERVISED, by="the keeper's watch on the memory that the sentry holds"),
        "cpus": Protection(Level.SUPERVISED, by="processor affinity of the sentry, which foreign code cannot change"),
        "pids": Protection(Level.KERNEL, by="RLIMIT_NPROC, counted by gVisor's kernel"),
        "disk": Protection(Level.KERNEL, by="the size of a tmpfs of gVisor's kernel"),
        "timeout": Protection(Level.KERNEL, by="SIGKILL to the pid namespace of runsc"),
        "output": Protection(Level.SUPERVISED, by="the keeper counts and ends the program"),
    }
    return counted(found, facts, {"memory": "memory", "cpus": "cpu"}, " round the sentry")


def _texts(facts: dict[str, Any]) -> dict[str, str]:
    if not facts:
        return {}
    texts = {"runsc": str(facts["runsc"]), "runsc_version": str(facts["runsc_version"]), **texts_of(facts)}
    del texts["landlock_abi"]
    return texts


def _mend(why: str) -> str:
    if "unknown platform" in why or "platform" in why:
        return "set gvisor.platform to auto, or install a newer runsc: systrap came in 2023"
    if "unshare" in why or "clone3" in why:
        return (
            "user namespaces are closed here: allow them, or run the server as root; skillyard doctor names the switch"
        )
    return MEND if "runsc" in why else ""


_USUAL, _USUAL_NATIVE = GvisorSettings(), NativeSettings()


class GvisorBackend(NativeBackend):
    """Makes sandboxes with a user-space kernel each, through a keeper below ``run_dir``."""

    name = "gvisor"
    program = "skillyard.sandbox.native.grounds.gvisor.ground"
    knows = ("terminals",)

    def __init__(
        self, run_dir: Path, settings: GvisorSettings = _USUAL, native: NativeSettings = _USUAL_NATIVE
    ) -> None:
        super().__init__(run_dir, native)
        self._gvisor = settings
        self._runsc = runsc.locate(settings.runsc)

    def keeper_options(self) -> dict[str, Any]:
        return {**super().keeper_options(), **self._gvisor.model_dump(), "runsc": self._runsc}

    @property
    def nature(self) -> Nature:
        return KIND.nature

    async def look(self) -> Probe:
        if not self._runsc:
            return absent(f"there is no {self._gvisor.runsc or 'runsc on PATH'}", {}, mend=runsc.MEND)
        return await probe(self)

    async def prepare(self, spec: SandboxSpec) -> Prepared | None:
        """Imports nothing ahead: each sandbox has an interpreter of its own."""
        return None if spec.environment.preload else await super().prepare(spec)

    async def outside(self, handle: str) -> dict[str, Any]:
        """Returns the facts of :meth:`GvisorGround.outside` about a sandbox. Raises SandboxGone."""
        answer, _ = await (await self._linked()).answer({"op": "outside", "handle": handle})
        return answer


def _make(place: Place) -> GvisorBackend:
    # Its keeper runs beside the native one and takes a block of user ids of its own from the same range.
    backend = GvisorBackend(place.run_dir / "gvisor", place.settings.gvisor, place.settings.native)
    backend.usual_pids = place.settings.limits.pids
    return backend


KIND = Kind(Nature(rank=2, network=False), _make)
