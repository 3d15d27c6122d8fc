"""A run directory, and the life of the processes that belong to it."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shlex
import signal
import socket
import stat
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from skillyard.domain.errors import SandboxFault, SandboxGone
from skillyard.domain.sandbox.spec import Owner, SandboxSpec
from skillyard.sandbox.agent_channel import Opener
from skillyard.sandbox.bounds import join_files
from skillyard.sandbox.content import bound
from skillyard.sandbox.guest_argv import descriptor, guest_bundle, guest_words
from skillyard.sandbox.srt import bounds, stage, tools
from skillyard.sandbox.srt.tools import Tools

PREFIX = "srt-"
NOT_STARTED = -1
LEASE_S = 10.0
"""How long the programs of a RUN sandbox outlive their server."""
_LONGEST = 70
_BOUND_S = 30.0
_STATE, _LOG, _SOCKET = "state.json", "log", "s"
_SHOWN = 500
_AGENT_PIDS = 4
"""Processes of srt and the agent, which count with those of programs."""


def claim(root: Path) -> None:
    """Makes the directory of run directories. Raises SandboxFault for one that others can enter, and a long path."""
    if len(str(root)) > _LONGEST:
        raise SandboxFault(f"srt.local_root: {root} is longer than {_LONGEST} characters; name a shorter directory")
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise SandboxFault(f"srt.local_root: {root} must be a directory of this user with the mode 0700; remove it")


def states(root: Path) -> dict[str, dict[str, Any]]:
    """Returns the state of each sandbox that was made, by handle."""
    found = {}
    for place in root.glob(f"{PREFIX}*"):
        with suppress(OSError, ValueError):
            found[place.name] = json.loads((place / _STATE).read_text("utf-8"))
    return found


def make(place: Path, spec: SandboxSpec, settings: dict[str, Any], state: dict[str, Any]) -> None:
    """Makes a run directory. Its state is there before a process is, so that no server loses one."""
    for source in (*(mount.source for mount in spec.mounts), spec.environment.packages):
        if source is not None and not bound(source).exists():
            raise SandboxFault(f"the source {bound(source)} is missing")
    place.mkdir(mode=0o700)
    write_state(place, state)
    stage.write_files(place, stage.INNER if state["uid"] is None else state["uid"], guest_bundle())
    (place / "settings.json").write_text(json.dumps(settings), "utf-8")
    (place / "settings.json").chmod(0o444)


def launch(place: Path, spec: SandboxSpec, found: Tools, state: dict[str, Any]) -> None:
    """Starts srt with the agent in it, and adds the process to the state."""
    pid = _start(place, spec, found, state)
    state |= {"pid": pid, "started": _started(pid)}
    write_state(place, state)


def _start(place: Path, spec: SandboxSpec, found: Tools, state: dict[str, Any]) -> int:
    """Returns the process id of the stage's process 1 on this host."""
    told, info = os.pipe()
    given, giving = os.pipe()
    with (
        socket.socket(socket.AF_UNIX) as listener,
        (place / _LOG).open("wb") as log,
        os.fdopen(told, "rb") as telling,
        os.fdopen(given, "rb") as reading,
    ):
        try:
            with os.fdopen(giving, "wb") as writing:
                # A pipe is read once: foreign code finds nothing in it later.
                writing.write(json.dumps(_agent_settings(spec, state["secret"])).encode() + b"\n")
            listener.bind(str(place / _SOCKET))
            listener.listen(16)
            running = stage.Running(place, state["uid"], bounds.shown(state["group"]))
            words = stage.command(running, found, spec, _agent(spec), info=info)
            join = "".join(f"echo 0 >{shlex.quote(file)}; " for file in join_files(state["group"]))
            limited = [tools.helper("prlimit"), "--core=1:1", tools.helper("setsid"), "--fork", *words]
            subprocess.run(
                ["/bin/sh", "-ec", f'{join}exec "$@"', "join", *limited] if join else limited,
                stdin=reading,
                stdout=listener.fileno(),
                stderr=log,
                pass_fds=(info,),
                env={"PATH": tools.PATH},
                cwd="/",
                check=True,
            )
        finally:
            os.close(info)
        try:
            return int(json.loads(telling.read())["child-pid"])
        except (ValueError, LookupError):
            raise SandboxFault(f"bubblewrap failed: {complaint(place)}") from None


def _agent(spec: SandboxSpec) -> list[str]:
    """Returns the command of the agent, which serves the socket that is its standard output."""
    limits = [f"--nproc={spec.limits.pids + _AGENT_PIDS}", f"--nofile={_descriptors()}"]
    return ["prlimit", *limits, *guest_words(tools.python(), stage.GUEST, "agent", "listen", descriptor(1))]


def _agent_settings(spec: SandboxSpec, key: str) -> dict[str, Any]:
    lease_s = LEASE_S if spec.owner is Owner.RUN else None
    given = {"key": key, "env": stage.environment(), "single": spec.single, "timeout_ms": spec.limits.timeout_ms}
    return given | {"lease_s": lease_s}


def write_state(place: Path, state: dict[str, Any]) -> None:
    """Writes the state as a whole, for this server and the next."""
    part = place / "state.part"
    part.write_text(json.dumps(state), "utf-8")
    part.chmod(0o600)
    part.rename(place / _STATE)


def complaint(place: Path) -> str:
    """Returns the end of what srt and its helpers wrote."""
    try:
        with (place / _LOG).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _SHOWN))
            return log.read(_SHOWN).decode("utf-8", "replace").strip() or "it said nothing"
    except OSError:
        return "it said nothing"


def opener(place: Path) -> Opener:
    """Returns the way to the agent of a run directory."""

    async def open_channel() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await asyncio.open_unix_connection(str(place / _SOCKET))
        except OSError as error:
            raise SandboxGone(f"sandbox {place.name} is unknown here: {error.strerror}") from None

    return open_channel


def free_uid(first: int, count: int, held: Iterable[Any]) -> int:
    """Returns a user id that no sandbox has. Raises SandboxFault where all are taken."""
    taken = set(held)
    for uid in range(first, first + count):
        if uid not in taken:
            return uid
    raise SandboxFault(f"all {count} user ids of sandboxes are taken; end some, or raise native.uid_count")


def alive(state: dict[str, Any]) -> bool:
    """Returns whether the process of a sandbox is there."""
    return bool(state["started"] != NOT_STARTED and _started(state["pid"]) == state["started"])


async def ended(state: dict[str, Any]) -> None:
    """Kills the stage's process 1; returns when the kernel has ended all in its namespace."""
    if state["started"] == NOT_STARTED:
        return
    try:
        pidfd = os.pidfd_open(state["pid"])
    except ProcessLookupError:
        return
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    try:
        if not alive(state):
            return
        loop.add_reader(pidfd, over.set)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        async with asyncio.timeout(_BOUND_S):
            await over.wait()
    except TimeoutError:
        raise SandboxFault(f"process {state['pid']} of a sandbox did not end in {_BOUND_S:.0f} s") from None
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _started(pid: int) -> int:
    """Returns when a process began; NOT_STARTED where there is none.

    By that it is told from a later one of its number.
    """
    try:
        return int(Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[19])
    except OSError:
        return NOT_STARTED


def _descriptors() -> int:
    """Returns the limit of open files inside, which the host's may be below."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4096 if most == resource.RLIM_INFINITY else min(most, 4096)
