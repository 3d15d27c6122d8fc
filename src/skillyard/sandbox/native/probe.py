"""The probe of the native backend: one sandbox is made and looked at from inside."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

from skillyard.domain.errors import InvalidInput, SandboxFault, SkillyardError
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.guarantees import LIMITS, WALLS, Level, Probe, Protection
from skillyard.domain.sandbox.spec import Argv, Mount, SandboxSpec, Stream
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Usage
from skillyard.ipc.channel import close_all
from skillyard.ports.sandbox import Sandbox
from skillyard.sandbox.native.host_advice import Surroundings, filter_mend, look, mend
from skillyard.sandbox.native.inside.walls import HOSTNAME
from skillyard.sandbox.native.linux import kernel
from skillyard.sandbox.native.sandbox import NativeSandbox
from skillyard.values import dataclass

_SHOWN = 300


async def look_inside(sandbox: Sandbox, code: str, *words: str, bound_ms: int) -> dict[str, Any]:
    """Returns the JSON object that ``code`` prints in a sandbox. Raises SkillyardError."""
    program = Argv(("python3", "-I", "-S", "-c", code, *words))
    process = await sandbox.start(program, id="look", timeout_ms=bound_ms)
    text = b"".join([piece async for piece in process.output(Stream.STDOUT)])
    ending = await process.wait()
    try:
        seen = json.loads(text)
    except (ValueError, RecursionError):
        seen = None
    if isinstance(seen, dict):
        return seen
    complaint = b"".join([piece async for piece in process.output(Stream.STDERR)])
    why = complaint.decode("utf-8", "replace").strip()[-_SHOWN:] or ending.reason or f"exit code {ending.code}"
    raise SkillyardError(f"python does not run in the sandbox: {why}")


class Prober(Protocol):
    """The backend whose host is probed."""

    usual_pids: int

    @property
    def has_gate(self) -> bool: ...

    async def facts(self) -> dict[str, Any]: ...

    async def create_unchecked(self, spec: SandboxSpec, key: str) -> NativeSandbox: ...

    async def open_sockets(self, handle: str, asked: dict[str, Any]) -> list[socket.socket]: ...

    async def destroy(self, handle: str) -> Usage: ...


ADDRESS, PORT = "203.0.113.7", 443
"""Of documentation (RFC 5737): nobody else has it."""

CODE = f"""
if sys.argv[1:]:
    try: socket.create_connection(({ADDRESS!r}, {PORT}), 2)
    except OSError: pass
"""
"""In the sandbox, with an argument when there is somebody to find."""


@dataclass(slots=True)
class Attempt:
    """``why`` there is nothing to find, or empty."""

    why: str = ""
    sockets: list[socket.socket] = field(default_factory=list)

    def found(self) -> Protection:
        """Returns whether a connection arrived, once the program in the sandbox has ended."""
        if self.why:
            return missing_egress(self.why)
        meant = [_meant(sock) for sock in self.sockets if sock.type == socket.SOCK_STREAM]
        if not any(host.removeprefix("::ffff:") == ADDRESS for host in meant):
            return missing_egress("a connection from a test sandbox did not arrive")
        return Protection(Level.KERNEL, by="a network namespace in which every address leads to the gate's sockets")

    def close(self) -> None:
        close_all(self.sockets)


async def attempt(backend: Prober, handle: str) -> Attempt:
    if not backend.has_gate:
        return Attempt("the server has no gate to plug sandboxes into")
    try:
        asked = {"streams": [PORT], "datagrams": [PORT]}
        return Attempt(sockets=await backend.open_sockets(handle, asked))
    except SandboxFault as error:
        return Attempt(f"no sockets can be opened in a sandbox: {error.message}")


def missing_egress(why: str) -> Protection:
    return Protection(Level.MISSING, why=why)


def _meant(listener: socket.socket) -> str:
    """The address that the first connection was made to."""
    try:
        connection, _ = listener.accept()
    except OSError:
        return ""
    with connection:
        return str(connection.getsockname()[0])


_LOOK = f"""
import json, os, socket, sys
{CODE}
"""
_LOOK += """
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
spaces = {name: os.readlink("/proc/self/ns/" + name) for name in os.listdir("/proc/self/ns")}
try:
    open("/etc/probe", "w")
    written = True
except OSError:
    written = False
try:
    os.openpty()
    terminal = ""
except OSError as error:
    terminal = error.strerror
print(json.dumps({"status": {k: v.strip() for k, v in status.items()}, "spaces": spaces, "written": written,
    "terminal": terminal,
    "processes": [int(name) for name in os.listdir("/proc") if name.isdigit()], "uid": os.getuid(),
    "name": os.uname().nodename}))
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
_IDS_MEND = {False: "run the server as root", True: "let the server keep CAP_SETUID and CAP_SETGID"}
_BOUND_MS = 15_000


async def probe(backend: Prober) -> Probe:
    """Never raises: what stands in the way is in the result."""
    if not kernel.SUPPORTED:
        return _nothing(f"the processor is {kernel.ARCH}; x86_64 and aarch64 are supported", {})
    facts: dict[str, Any] = {}
    try:
        facts = await backend.facts()
        seen, abilities = await _look(backend)
    except SkillyardError as error:
        return await _explained(error.message, facts)
    protections = {**_walls(seen, facts), **_limits(facts)}
    if protections["landlock"].level is Level.MISSING:
        protections["landlock"] = _no_landlock(await look())
    if seen["name"] != HOSTNAME:
        protections["uts_namespace"] = _no_name(await look())
    abilities["keeping"] = _keeping(protections["landlock"])
    return Probe("native", True, protections, texts_of(facts), abilities)


@asynccontextmanager
async def sandbox_to_look_at(backend: Prober, **options: Any) -> AsyncIterator[NativeSandbox]:
    """Makes a small sandbox to look at, and destroys it. ``options`` are SandboxSpec's. Raises SkillyardError."""
    spec = SandboxSpec(limits=Limits(pids=backend.usual_pids, disk_mb=16), **options)
    sandbox = await backend.create_unchecked(spec, f"probe-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        yield sandbox
    finally:
        await backend.destroy(sandbox.handle)


_OWN = Content("probe", Path(__file__).resolve().parent)
"""Anything that can be shown."""


async def _look(backend: Prober) -> tuple[dict[str, Any], dict[str, Protection]]:
    try:
        return await _look_at(backend, terminals=True)
    except SkillyardError:  # they may be what cannot be had here
        return await _look_at(backend, terminals=False)


async def _look_at(backend: Prober, *, terminals: bool) -> tuple[dict[str, Any], dict[str, Protection]]:
    shown = (Mount(_OWN, "/skills/probe"),)
    async with sandbox_to_look_at(backend, mounts=shown, terminals=terminals) as sandbox:
        with closing(await attempt(backend, sandbox.handle)) as tried:
            seen = await look_inside(sandbox, _LOOK, *([] if tried.why else ["find"]), bound_ms=_BOUND_MS)
            return seen, {
                **dict.fromkeys(("egress", "direct"), tried.found()),
                "forwarding": await _forwarding(sandbox),
                "terminals": _terminals(seen["terminal"]),
            }


def _terminals(error: str) -> Protection:
    if error:
        return Protection(Level.MISSING, why=f"none could be opened in a test sandbox: {error}")
    return Protection(Level.KERNEL, by="a file system of terminals (devpts) of each sandbox's own")


KEEPS = "the first process of the sandbox, by the parents that the kernel tells"


def _keeping(landlock: Protection) -> Protection:
    """A program that writes into the memory of a kept one would be kept with it."""
    if landlock.level is Level.MISSING:
        why = "without Landlock a program can write into the memory of another"
        return Protection(Level.MISSING, why=why, mend=landlock.mend)
    return Protection(Level.SUPERVISED, by=KEEPS)


async def _forwarding(sandbox: NativeSandbox) -> Protection:
    """Tries a port on which nobody listens."""
    try:
        await (await sandbox.forward(1)).close()
    except InvalidInput:
        return Protection(Level.KERNEL, by="sockets that are made in the sandbox's network namespace")
    except SkillyardError as error:
        return Protection(Level.MISSING, why=error.message)
    return Protection(Level.MISSING, why="a test sandbox accepted a connection where nobody listens")


def _walls(seen: dict[str, Any], facts: dict[str, Any]) -> dict[str, Protection]:
    status = seen["status"]
    stands = {
        wall: seen["spaces"].get(space) not in (None, os.readlink(f"/proc/self/ns/{space}"))
        for wall, space in _SPACES.items()
    }
    stands["read_only_root"] = not seen["written"]
    stands["private_proc"] = min(seen["processes"]) == 1 and len(seen["processes"]) <= 3
    stands["non_root"] = seen["uid"] != 0
    stands["no_capabilities"] = all(int(status[name], 16) == 0 for name in status if name.startswith("Cap"))
    stands["no_new_privs"] = status["NoNewPrivs"] == "1"
    stands["seccomp"] = status["Seccomp"] == "2"
    walls = {wall: by_kernel(wall.replace("_", " "), held) for wall, held in stands.items()}
    walls["landlock"] = _landlock(facts)
    walls["own_uid"] = own_uid(facts, "a user id of its own for each sandbox", _IDS_MEND[os.geteuid() == 0])
    return {wall: walls[wall] for wall in WALLS}


def own_uid(facts: dict[str, Any], by: str, mend: str = _IDS_MEND[False]) -> Protection:
    if facts["own_uid"]:
        return Protection(Level.KERNEL, by=by)
    return Protection(Level.MISSING, why="only our own user id can be given", mend=mend)


def by_kernel(by: str, held: bool) -> Protection:
    """Returns the protection of a wall that did or did not stand in a test sandbox."""
    if held:
        return Protection(Level.KERNEL, by=by)
    return Protection(Level.MISSING, why="it was not in force in a test sandbox")


def _landlock(facts: dict[str, Any]) -> Protection:
    if facts["landlock"]:
        return Protection(Level.KERNEL, by=f"Landlock ABI {facts['landlock']}")
    return Protection(Level.MISSING, why="this kernel has no Landlock")


def _no_landlock(found: Surroundings | None) -> Protection:
    """A kernel without it, one that was started without it, or a filter before it."""
    if found is not None and "landlock" in found.modules:
        return Protection(Level.MISSING, why="a filter of system calls keeps Landlock from us", mend=filter_mend(found))
    if found is not None and found.filtered and not found.modules:
        why = "this kernel has no Landlock, or a filter of system calls keeps it from us"
        return Protection(Level.MISSING, why=why, mend=filter_mend(found))
    return Protection(Level.MISSING, why="this kernel has no Landlock", mend="add landlock to the lsm= boot option")


def _no_name(found: Surroundings | None) -> Protection:
    """Sandboxes can be without, so it is told here and not with what refuses them."""
    mend = filter_mend(found) if found is not None and found.filtered else ""
    return Protection(Level.MISSING, why="the name of this host shows: sethostname is refused", mend=mend)


def _limits(facts: dict[str, Any]) -> dict[str, Protection]:
    found = {
        "memory": Protection(Level.SUPERVISED, by="the keeper's watch and RLIMIT_DATA"),
        "cpus": Protection(Level.SUPERVISED, by="processor affinity that cannot be changed back"),
        "pids": Protection(Level.KERNEL, by="RLIMIT_NPROC in the sandbox's user namespace"),
        "disk": Protection(Level.KERNEL, by="the size of the sandbox's tmpfs"),
        "timeout": Protection(Level.KERNEL, by="SIGKILL to the sandbox's pid namespace"),
        "output": Protection(Level.SUPERVISED, by="the keeper counts and ends the program"),
    }
    return counted(found, facts, {"memory": "memory", "pids": "pids", "cpus": "cpu"})


def counted(
    found: dict[str, Protection], facts: dict[str, Any], controllers: dict[str, str], where: str = ""
) -> dict[str, Protection]:
    """Returns all limits, those by the kernel whose control group has the controller."""
    for limit, controller in controllers.items():
        if controller in facts["cgroups"]:
            by = f"cgroup v{facts['cgroup_version']} {controller}{where}"
            found[limit] = Protection(Level.KERNEL, by=by)
        elif found[limit].level is Level.SUPERVISED:
            why = facts["cgroups_missing"].get(controller, "")
            mend = "run the server as root, or in a delegated cgroup (systemd-run --user -p Delegate=yes)"
            found[limit] = Protection(Level.SUPERVISED, by=found[limit].by, why=why, mend=mend)
    return {limit: found[limit] for limit in LIMITS}


def texts_of(facts: dict[str, Any]) -> dict[str, str]:
    """Returns the facts of a keeper for operators; nothing where there are none."""
    if not facts:
        return {}
    return {
        "kernel": str(facts["kernel"]),
        "python": str(facts["python"]),
        "landlock_abi": str(facts["landlock"]),
        "cgroups": f"v{facts['cgroup_version']}: {', '.join(facts['cgroups']) or 'none'}",
        "uids": f"{facts['uids'][1]} from {facts['uids'][0]}" if facts["own_uid"] else "the server's own",
        **({"walls": facts["walls"]} if "walls" in facts else {}),
    }


async def _explained(why: str, facts: dict[str, Any]) -> Probe:
    """With what we know to do about it, where we know it."""
    return _nothing(why, facts, mend(await look(), why))


def _nothing(why: str, facts: dict[str, Any], mend: str = "") -> Probe:
    missing = Protection(Level.MISSING, why=why, mend=mend)
    texts = {**texts_of(facts), "why": why, **({"mend": mend} if mend else {})}
    return Probe(
        "native",
        False,
        dict.fromkeys((*WALLS, *LIMITS), missing),
        texts,
        dict.fromkeys(("egress", "forwarding", "terminals", "keeping"), missing),
    )
