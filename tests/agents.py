"""Real agents without walls, each in a directory of its own, for tests of the agent and of its client."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from skillyard.domain.errors import SandboxGone
from skillyard.domain.sandbox.spec import Argv, Stream
from skillyard.ports.sandbox import Process
from skillyard.sandbox.agent_channel import Opener
from skillyard.sandbox.agent_client import AgentSandbox
from skillyard.sandbox.agent_link import Reach
from skillyard.sandbox.guest_argv import guest_bundle


def _reachable(path: Path) -> bool:
    return path.exists() and all(part.stat().st_mode & 0o001 for part in path.resolve().parents)


_OURS, _SYSTEM = Path(sys.base_prefix, "bin", "python3"), Path("/usr/bin/python3")
PYTHON = str(_SYSTEM if _reachable(_SYSTEM) and not _reachable(_OURS) else _OURS)
"""The interpreter of agents and programs: one that every user reaches, where there is one."""
BOUND_S = 20.0
NOBODY = 65534
READY = "print('ready', flush=True)\n"
WAIT = READY + "import time\ntime.sleep(600)"


class AgentBox:
    """An agent on a socket in ``root``.

    ``settings`` are the agent's own, ``as_user`` runs it as another user, ``prefix`` is a command that executes it.
    """

    def __init__(
        self,
        root: Path,
        settings: Mapping[str, Any] | None = None,
        as_user: int | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.root = root
        self.socket, self.bundle = root / "s", root / "guest.pyz"
        self.workspace = root / "workspace"
        self.key = secrets.token_bytes(32)
        self._user, self._prefix = as_user, prefix
        self._settings = {
            "key": self.key.hex(),
            "cwd": str(self.workspace),
            "spool": str(root),
            "env": {"PATH": f"{Path(PYTHON).parent}:/usr/bin:/bin", "HOME": str(self.workspace)},
            "timeout_ms": 60_000,
            **(settings or {}),
        }
        self.workspace.mkdir()
        self.workspace.chmod(0o777)
        self.bundle.write_bytes(guest_bundle())
        self.process: subprocess.Popen[bytes] | None = None
        self.clients: list[AgentSandbox] = []

    def command(self, *words: str) -> list[str]:
        return [PYTHON, "-I", "-S", str(self.bundle), "agent", *words]

    def environment(self) -> dict[str, str]:
        return {"SKILLYARD_AGENT": json.dumps(self._settings)}

    def listen(self) -> None:
        """Starts the agent, whose socket is there when this returns."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.socket))
            listener.listen(16)
            self.process = subprocess.Popen(
                [*self._prefix, *self.command("listen", f"fd:{listener.fileno()}")],
                env=self.environment(),
                pass_fds=(listener.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                user=self._user,
                group=self._user,
                extra_groups=None if self._user is None else [],
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def opener(self) -> Opener:
        async def opened() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            try:
                return await asyncio.open_unix_connection(str(self.socket))
            except OSError as error:
                raise SandboxGone(f"there is no agent: {error}") from None

        return opened

    def client(self, opener: Opener | None = None, *, lease_s: float | None = None, instance: str = "") -> AgentSandbox:
        """Returns the sandbox as a server of its own has it."""
        reach = Reach(opener or self.opener(), self.key, instance)
        sandbox = AgentSandbox(reach, "box", {}, timeout_ms=60_000, lease_s=lease_s)
        self.clients.append(sandbox)
        return sandbox

    async def close(self) -> None:
        """Ends the agent and all that it supervises."""
        for client in self.clients:
            await client.close()
        if self.process is not None:
            with suppress(SandboxGone):
                await self.client().end()
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGCONT)
            try:
                await asyncio.to_thread(self.process.wait, BOUND_S)
            finally:
                self.process.kill()
                self.process.wait()


def other_user() -> int | None:
    """Returns a user that is not root for an agent; None where root alone can reach the interpreter, or is not here."""
    return NOBODY if os.geteuid() == 0 and _reachable(Path(PYTHON)) else None


def python(source: str, *args: str, stdin: bool = False, cwd: str = "") -> Argv:
    return Argv((PYTHON, "-I", "-S", "-c", source, *args), stdin=stdin, cwd=cwd)


async def collect(process: Process, stream: Stream = Stream.STDOUT, offset: int = 0) -> bytes:
    async with asyncio.timeout(BOUND_S):
        return b"".join([data async for data in process.output(stream, offset)])


async def until(process: Process, text: bytes) -> bytes:
    """Reads until ``text`` has come."""
    seen = b""
    async with asyncio.timeout(BOUND_S):
        async for data in process.output(Stream.STDOUT):
            seen += data
            if text in seen:
                return seen
    raise AssertionError(f"it ended before {text!r}: {seen!r}")


def alive(pid: int) -> bool:
    """Returns whether a process is there that has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


async def gone(pid: int) -> None:
    """Returns when a process has ended. Raises TimeoutError."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        async with asyncio.timeout(BOUND_S):
            await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
