"""The landlock backend: the native keeper and zygotes behind the walls of a plain container."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from skillyard.domain.errors import SkillyardError
from skillyard.domain.sandbox.guarantees import LIMITS, WALLS, Level, Nature, Probe, Protection
from skillyard.domain.sandbox.spec import Argv, Guest, Prepared, Program, SandboxSpec, Stream
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.grounds.landlock import area, support
from skillyard.sandbox.native.grounds.landlock.inside.places import real, root_of
from skillyard.sandbox.native.link import Link
from skillyard.sandbox.native.linux import kernel
from skillyard.sandbox.native.probe import (
    Prober,
    by_kernel,
    look_inside,
    own_uid,
    sandbox_to_look_at,
    texts_of,
)
from skillyard.sandbox.native.sandbox import NativeSandbox
from skillyard.sandbox.registry import Kind, Place

_LOOK = """
import json, os, socket, sys
listening, file, server = sys.argv[1:]
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
tried = {}
def attempt(name, function):
    try: function()
    except OSError: tried[name] = False
    else: tried[name] = True
attempt("read", lambda: open(file).read())
attempt("write", lambda: open("/tmp/.skillyard-probe", "w"))
attempt("list", lambda: os.listdir("/proc"))
attempt("connect", lambda: socket.create_connection(("127.0.0.1", int(listening)), 2))
attempt("signal", lambda: os.kill(int(server), 0))
attempt("keeper", lambda: os.kill(os.getppid(), 0))
print(json.dumps({"status": {k: v.strip() for k, v in status.items()}, "tried": tried, "uid": os.getuid()}))
"""
_BOUND_MS = 15_000
_NONE = {
    "user_namespace": "namespaces are not used here",
    "mount_namespace": "the host's directories are kept out by Landlock: what may not be opened can still be named",
    "pid_namespace": "processes of the host can be counted, but neither seen nor signalled",
    "net_namespace": "every socket is refused instead",
    "ipc_namespace": "shared memory, queues and semaphores are refused instead",
    "uts_namespace": "the host's name is told",
    "cgroup_namespace": "the files that tell of groups are kept out by Landlock",
    "read_only_root": "Landlock keeps writing to the sandbox's own directory instead",
    "private_proc": "of /proc a program may read what tells of itself",
}
_MEND = "use the isolation 'native' where this host allows namespaces"
_NO_EGRESS = Protection(
    Level.MISSING, why="without a network namespace a sandbox has no network that a gate could hold", mend=_MEND
)
_NO_KEEPING = Protection(
    Level.MISSING, why="no process sees another, so that it cannot be told which program's they are", mend=_MEND
)
_NO_TERMINALS = Protection(
    Level.MISSING, why="without a mount namespace there are the host's terminals alone", mend=_MEND
)
_ABILITIES = {"egress": _NO_EGRESS, "keeping": _NO_KEEPING, "terminals": _NO_TERMINALS}
_LISTEN = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
server.accept()[0].sendall(b"here")
"""


async def probe(backend: Prober) -> Probe:
    """Makes a sandbox that tries to get out. Never raises: the result has the reason."""
    if not kernel.SUPPORTED:
        return _nothing(f"the processor is {kernel.ARCH}; x86_64 and aarch64 are supported", {})
    facts: dict[str, Any] = {}
    try:
        facts = await backend.facts()
        seen = await _look(backend)
    except SkillyardError as error:
        return _nothing(error.message, facts)
    reached = [name for name, got in seen["tried"].items() if got]
    if reached:
        return _nothing(f"a test sandbox got through: {', '.join(reached)}", facts)
    abilities = {**_ABILITIES, "forwarding": await _forwarding(backend)}
    return Probe("landlock", True, {**_walls(seen, facts), **_limits(facts)}, _texts(facts), abilities)


async def _look(backend: Prober) -> dict[str, Any]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener, tempfile.NamedTemporaryFile() as canary:
        Path(canary.name).chmod(0o644)
        words = (str(listener.getsockname()[1]), canary.name, str(os.getpid()))
        async with sandbox_to_look_at(backend) as sandbox:
            return await look_inside(sandbox, _LOOK, *words, bound_ms=_BOUND_MS)


async def _forwarding(backend: Prober) -> Protection:
    """Connects to a port of a second sandbox, past its keeper and through it."""
    try:
        async with sandbox_to_look_at(backend, forwarding=True) as sandbox, asyncio.timeout(_BOUND_MS / 1000):
            program = Argv(("python3", "-I", "-S", "-c", _LISTEN))
            process = await sandbox.start(program, id="listen", timeout_ms=_BOUND_MS)
            told = b""
            async for piece in process.output(Stream.STDOUT):
                told += piece
                if told.endswith(b"\n"):
                    break
            port = int(told)
            with closing(socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK)) as stranger:
                stranger.connect_ex(("127.0.0.1", port))
                stream = await sandbox.forward(port)
                said = await stream.read()
                await stream.close()
                # It was tried before the connection that stands: had it been let in, it would be connected.
                let_in = stranger.connect_ex(("127.0.0.1", port)) in (0, errno.EISCONN)
    except SkillyardError as error:
        return Protection(Level.MISSING, why=error.message, mend=_MEND)
    except (TimeoutError, ValueError, OverflowError):
        return Protection(Level.MISSING, why="a test sandbox could not listen", mend=_MEND)
    if said != b"here" or let_in:
        return Protection(Level.MISSING, why="a test sandbox was reached past its keeper", mend=_MEND)
    return Protection(Level.KERNEL, by="sockets that the keeper makes, and that take connections from it alone")


def _walls(seen: dict[str, Any], facts: dict[str, Any]) -> dict[str, Protection]:
    status = seen["status"]
    held = [name for name in ("CapInh", "CapPrm", "CapEff", "CapAmb") if int(status[name], 16)]
    stands = {
        "non_root": seen["uid"] != 0,
        "no_capabilities": not held and (status["NoNewPrivs"] == "1" or not int(status["CapBnd"], 16)),
        "no_new_privs": status["NoNewPrivs"] == "1",
        "seccomp": status["Seccomp"] == "2",
    }
    walls = {name: Protection(Level.MISSING, why=why, mend=_MEND) for name, why in _NONE.items()}
    for name, stood in stands.items():
        walls[name] = by_kernel(name.replace("_", " "), stood)
    walls["landlock"] = Protection(Level.KERNEL, by=_landlock(int(facts["landlock"])))
    walls["own_uid"] = own_uid(facts, "a user id of its own for each sandbox, and another for its init")
    return {wall: walls[wall] for wall in WALLS}


def _landlock(version: int) -> str:
    parts = ["files", *(["TCP"] if version >= 4 else []), *(["signals"] if version >= 6 else [])]
    return f"Landlock version {version}: {', '.join(parts)}"


def _limits(facts: dict[str, Any]) -> dict[str, Protection]:
    watched = "the keeper's watch"
    found = {
        "memory": Protection(Level.SUPERVISED, by=f"{watched} and RLIMIT_DATA", mend=_MEND),
        "cpus": Protection(Level.SUPERVISED, by="processor affinity that cannot be changed back", mend=_MEND),
        "pids": (
            Protection(Level.KERNEL, by="RLIMIT_NPROC of the sandbox's own user")
            if facts["own_uid"]
            else Protection(Level.SUPERVISED, by=watched, why="all sandboxes are one user", mend="run it as root")
        ),
        "disk": Protection(Level.SUPERVISED, by=f"{watched} and RLIMIT_FSIZE", mend=_MEND),
        "timeout": Protection(Level.KERNEL, by="SIGKILL to all that its init can signal: the sandbox's own tree"),
        "output": Protection(Level.SUPERVISED, by="the keeper counts and ends the program"),
    }
    return {limit: found[limit] for limit in LIMITS}


def _texts(facts: dict[str, Any]) -> dict[str, str]:
    if not facts:
        return {}
    executable = "yes" if facts["executable"] else "no: what is written in a sandbox cannot be executed"
    texts = {**texts_of(facts), "sandboxes": str(facts["homes"]), "executable": executable}
    del texts["cgroups"]
    return texts


def _nothing(why: str, facts: dict[str, Any]) -> Probe:
    missing = Protection(Level.MISSING, why=why, mend=support.mend(why))
    texts = {**_texts(facts), "why": why}
    abilities = {**_ABILITIES, "forwarding": missing}
    return Probe("landlock", False, dict.fromkeys((*WALLS, *LIMITS), missing), texts, abilities)


class LandlockSandbox(NativeSandbox):
    def __init__(self, link: Link, handle: str, enforced: dict[str, str]) -> None:
        super().__init__(link, handle, enforced)
        self._root = root_of(link.told["homes"], link.told["secret"], handle)
        self._code = link.told["code"]

    def message(self, program: Program) -> tuple[dict[str, Any], bytes]:
        return super().message(Guest(self._placed(program)) if isinstance(program, Guest) else program)

    def files_program(self) -> tuple[str, ...]:
        code = (
            f"import sys; sys.path.insert(0, {self._code!r});"
            " from skillyard.sandbox.native.grounds.landlock.inside.places import main; sys.exit(main())"
        )
        return ("python3", "-I", "-S", "-c", code)

    def _placed(self, program: Guest) -> dict[str, Any]:
        request = program.request
        skills = {name: {**skill, "root": real(self._root, skill["root"])} for name, skill in request["skills"].items()}
        places = {name: real(self._root, request.get(name, plain)) for name, plain in _PLACES.items()}
        return {**request, **places, "skills": skills}


_PLACES = {"workspace": "/workspace", "blob_root": "/blobs"}


_OWN_IDS = {"uid_base": 1_901_000_000, "uid_count": 16_384}
"""These ids are apart from the native backend's, and more, since each sandbox takes two."""


class LandlockBackend(NativeBackend):
    """Makes sandboxes behind Landlock, filters and user ids, through a keeper below ``run_dir``.

    Where each sandbox has a user of its own, they lie below a directory that every user can enter.
    """

    name = "landlock"
    program = "skillyard.sandbox.native.grounds.landlock.ground"
    knows = ("terminals",)

    def keeper_options(self) -> dict[str, Any]:
        return super().keeper_options() | _OWN_IDS

    @property
    def nature(self) -> Nature:
        return KIND.nature

    def clear(self, home: Path) -> None:
        area.sweep(str(home))
        super().clear(home)

    async def look(self) -> Probe:
        return await probe(self)

    async def prepare(self, spec: SandboxSpec) -> Prepared | None:
        """Imports ahead only the packages that the operator names: programs then see no /proc."""
        return None if spec.environment.preload else await super().prepare(spec)

    def shape(self, link: Link, spec: SandboxSpec) -> dict[str, Any]:
        return super().shape(link, spec) | ({"forwarding": True} if spec.forwarding else {})

    def hold(self, link: Link, handle: str, enforced: dict[str, str]) -> LandlockSandbox:
        return LandlockSandbox(link, handle, enforced)


def _make(place: Place) -> LandlockBackend:
    backend = LandlockBackend(place.run_dir / "landlock", place.settings.native)
    backend.usual_pids = place.settings.limits.pids
    return backend


KIND = Kind(Nature(rank=3, without=frozenset(_NONE), network=False), _make)
