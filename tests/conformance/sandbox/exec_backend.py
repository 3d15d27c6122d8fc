"""A backend that makes a bubblewrap sandbox, gives a channel to the agent in it, and takes it away again.

Test-only: it proves that the port is not shaped by fork, and that a backend without a keeper is create, channel and
destroy. Its state is a directory for each sandbox, so that another server finds what an earlier one made.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from skillyard.domain.errors import SandboxFault, SandboxGone
from skillyard.domain.sandbox.guarantees import Demand, Level, Nature, Probe
from skillyard.domain.sandbox.spec import Argv, Held, Owner, SandboxSpec, Stream
from skillyard.domain.work.record import Usage
from skillyard.ports.gate import Plug
from skillyard.sandbox.agent_channel import Opener
from skillyard.sandbox.agent_client import AgentSandbox, plugged
from skillyard.sandbox.agent_link import Reach
from skillyard.sandbox.content import ContentCache, bound
from skillyard.sandbox.guest_argv import guest_bundle
from tests.conformance.sandbox import exec_walls
from tests.conformance.sandbox.exec_probe import LOOK, absent, judge

LEASE_S = 10.0
BOUND_S = 30.0


class ExecBackend:
    """Sandboxes below ``base``. Those owned as TASK outlive this object."""

    name = "exec"
    nature = Nature()

    def __init__(self, base: Path, gate: Plug | None = None) -> None:
        self._base, self._gate = base, gate
        self._open: dict[str, AgentSandbox] = {}
        self._creating = asyncio.Lock()
        self._destroying: dict[str, asyncio.Task[Usage]] = {}
        self._probe: Probe | None = None
        self._content = ContentCache(base / "content", self.survey)

    async def probe(self) -> Probe:
        if self._probe is None:
            self._probe = await self._look()
        return self._probe

    async def _look(self) -> Probe:
        if why := exec_walls.missing_tools():
            return absent(why)
        sandbox = await self._make(SandboxSpec(), "probe", {})
        try:
            process = await sandbox.start(Argv(("python3", "-I", "-c", LOOK)), id="look")
            seen = b"".join([data async for data in process.output(Stream.STDOUT)])
            said = b"".join([data async for data in process.output(Stream.STDERR)])
            if not seen:
                return absent(said.decode())
            egress = await sandbox.way_out.look(sandbox, Level.KERNEL)
            return judge(json.loads(seen), exec_walls.host_uid(), egress)
        finally:
            await self.destroy(sandbox.handle)

    async def create(self, spec: SandboxSpec, key: str) -> AgentSandbox:
        probe = await self.probe()
        Demand(spec.kernel_only, spec.allow_degraded).check(probe.protections)
        spec.refuse_names(self.name, "terminals")
        if spec.egress is not None:
            probe.demand("egress")
        if spec.forwarding:
            probe.demand("forwarding")
        async with self._creating:
            for handle, state in self._states().items():
                if state["key"] == key:
                    return await plugged(await self.attach(handle), spec.egress, self.destroy)
            async with self._content.placed(spec, key) as placed:
                sandbox = await self._make(placed, key, probe.enforced())
            return await plugged(sandbox, spec.egress, self.destroy)

    async def _make(self, spec: SandboxSpec, key: str, enforced: dict[str, str]) -> AgentSandbox:
        handle = f"exec-{secrets.token_hex(8)}"
        place = self._base / handle
        try:
            _tree(place)
            began = time.clock_gettime(time.CLOCK_BOOTTIME)
            state: dict[str, Any] = {"key": key, "owner": spec.owner.value, "began": began, "enforced": enforced}
            state |= {"timeout_ms": spec.limits.timeout_ms, "secret": secrets.token_hex(32)}
            state |= await asyncio.to_thread(_launch, place, spec, state["secret"])
            _write_state(place, state)
            return await self.attach(handle)
        except BaseException:
            await self.destroy(handle)
            raise

    async def attach(self, handle: str) -> AgentSandbox:
        if handle not in self._open:
            state = self._states().get(handle)
            if state is None:
                raise SandboxGone(f"sandbox {handle} is unknown here")
            reach = Reach(_opener(self._base / handle), bytes.fromhex(state["secret"]))
            lease_s = LEASE_S if state["owner"] == Owner.RUN else None
            timeout_ms, enforced = state["timeout_ms"], state["enforced"]
            sandbox = AgentSandbox(reach, handle, enforced, timeout_ms=timeout_ms, lease_s=lease_s, gate=self._gate)
            await sandbox.connect()
            self._open.setdefault(handle, sandbox)
        return self._open[handle]

    async def survey(self) -> Sequence[Held]:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        states = self._states().items()
        return [Held(handle, s["key"], Owner(s["owner"]), now - s["began"]) for handle, s in states]

    def _states(self) -> dict[str, dict[str, Any]]:
        found = {}
        for place in self._base.iterdir():
            with suppress(FileNotFoundError):
                found[place.name] = json.loads((place / "state.json").read_text())
        return found

    async def destroy(self, handle: str) -> Usage:
        if not handle.startswith("exec-") or not (self._base / handle).is_dir():
            return Usage()
        if handle not in self._destroying:
            task = self._destroying[handle] = asyncio.create_task(self._destroy(handle))
            task.add_done_callback(lambda _: self._destroying.pop(handle))
        return await asyncio.shield(self._destroying[handle])

    async def _destroy(self, handle: str) -> Usage:
        place, used = self._base / handle, Usage()
        state = self._states().get(handle, {})
        with suppress(SandboxFault):
            used = await (await self.attach(handle)).end()
        self._open.pop(handle, None)
        if state:
            await _gone(state)
        await _remove(place)
        if state:
            self._content.release(state["key"])
        wall_ms = (time.clock_gettime(time.CLOCK_BOOTTIME) - state.get("began", 0)) * 1000
        return Usage(used.cpu_ms, used.peak_memory_bytes, wall_ms)

    async def prepare(self, spec: SandboxSpec) -> None:
        """Nothing can be made ahead."""

    async def close(self) -> None:
        states = self._states()
        for handle, sandbox in list(self._open.items()):
            if states.get(handle, {}).get("owner") == Owner.TASK:
                await sandbox.close()
            else:
                await self.destroy(handle)
        self._open.clear()


def _tree(place: Path) -> None:
    place.mkdir(mode=0o711)
    for name in exec_walls.WRITABLE:
        (place / name).mkdir(mode=0o700)
        if exec_walls.as_root():
            os.chown(place / name, exec_walls.NOBODY, exec_walls.NOBODY)
    exec_walls.write_etc(place / "etc")
    (place / "guest.pyz").write_bytes(guest_bundle())


def _launch(place: Path, spec: SandboxSpec, secret: str) -> dict[str, int]:
    """Starts the agent as pid 1 of a sandbox; returns its process id and start time on this host."""
    for source in (*(mount.source for mount in spec.mounts), spec.environment.packages):
        if source is not None and not bound(source).exists():
            raise SandboxFault(f"the source {bound(source)} is missing")
    settings = {"key": secret, "env": exec_walls.environment(), "single": spec.single}
    settings |= {"lease_s": LEASE_S if spec.owner is Owner.RUN else None, "timeout_ms": spec.limits.timeout_ms}
    told, info = os.pipe()
    with (
        socket.socket(socket.AF_UNIX) as listener,
        tempfile.TemporaryFile() as said,
        (place / "log").open("wb") as log,
        os.fdopen(told, "rb") as telling,
    ):
        listener.bind(str(place / "s"))
        listener.listen(16)
        agent = [exec_walls.python(), "-I", "-S", exec_walls.GUEST, "agent", "listen", f"fd:{listener.fileno()}"]
        said.write(json.dumps(settings).encode() + b"\n")
        said.seek(0)
        command = exec_walls.command(place, spec, agent, info=info)
        subprocess.run(
            ["prlimit", f"--nofile={_descriptors()}", "setsid", "--fork", *command],
            stdin=said,
            stdout=subprocess.DEVNULL,
            stderr=log,
            pass_fds=(listener.fileno(), info),
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            check=True,
        )
        os.close(info)
        try:
            pid = int(json.loads(telling.read())["child-pid"])
        except ValueError:
            raise SandboxFault(f"bubblewrap failed: {(place / 'log').read_text()[:500]}") from None
    return {"pid": pid, "started": _started(pid)}


def _write_state(place: Path, state: dict[str, Any]) -> None:
    part = place / "state.part"
    part.write_text(json.dumps(state))
    part.chmod(0o600)
    part.rename(place / "state.json")


def _started(pid: int) -> int:
    """Returns when a process began, by which it is told from another one of its number; -1 where there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return -1


def _opener(place: Path) -> Opener:
    async def open_channel() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await asyncio.open_unix_connection(str(place / "s"))
        except OSError as error:
            raise SandboxGone(f"sandbox {place.name} is unknown here: {error.strerror}") from None

    return open_channel


async def _gone(state: dict[str, Any]) -> None:
    """Kills the sandbox's pid 1; returns when the kernel has ended all that was in its namespace."""
    try:
        pidfd = os.pidfd_open(state["pid"])
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    try:
        if _started(state["pid"]) != state["started"]:
            return
        loop.add_reader(pidfd, ended.set)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        async with asyncio.timeout(BOUND_S):
            await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


async def _remove(root: Path) -> None:
    """A tree of any depth, with names and modes of any kind: coreutils manage it, shutil does not."""
    for tool in (["chmod", "-R", "-f", "u+rwx"], ["rm", "-rf", "--one-file-system"]):
        process = await asyncio.create_subprocess_exec(*tool, "--", str(root), stderr=subprocess.DEVNULL)
        await process.wait()
    if root.exists():
        raise SandboxFault(f"{root} could not be removed")


def _descriptors() -> int:
    """Returns the limit of open files inside, which the host's may be below."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4096 if most == resource.RLIM_INFINITY else min(most, 4096)
