"""A backend of sandboxes in memory, whose programs are callables."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from skillyard.domain.archive.names import ArchiveRefused
from skillyard.domain.errors import ProtectionMissing, SandboxFault, SandboxGone
from skillyard.domain.network.session import PROXY_PORT, Egress
from skillyard.domain.package.platforms import Platform
from skillyard.domain.sandbox.content import Content, HostDirectory
from skillyard.domain.sandbox.guarantees import PROTECTIONS, Demand, Level, Nature, Probe, Protection
from skillyard.domain.sandbox.spec import (
    DEFAULT_STREAMS,
    Guest,
    Held,
    Owner,
    Prepared,
    Program,
    SandboxSpec,
    StreamLimits,
)
from skillyard.domain.work.record import Usage
from skillyard.testing.twin_sandbox.files import Files, FilesOfTwin, Node, from_host, from_tar
from skillyard.testing.twin_sandbox.process import Script, TwinProcess

ALL_WALLS = {name: Protection(Level.KERNEL) for name in PROTECTIONS}
"""Claims that nothing stands behind: they let a test ask for what policy demands."""


class Started(NamedTuple):
    """A first program of a sandbox; a command has an empty ``request``."""

    spec: SandboxSpec
    request: Mapping[str, Any]
    timeout_ms: int | None


class TwinSandbox(FilesOfTwin):
    def __init__(self, backend: TwinBackend, handle: str, key: str, spec: SandboxSpec, files: Files) -> None:
        super().__init__(files)
        self.backend = backend
        self.handle, self.key, self.spec = handle, key, spec
        offered = {name: each.level.value for name, each in backend.protections.items()}
        self.enforced = offered | backend.in_force
        self.processes: dict[str, TwinProcess] = {}
        self.plugged: list[Egress] = []
        self.began = time.monotonic()
        self.gone = False

    async def start(
        self, program: Program, *, id: str, timeout_ms: int | None = None, streams: StreamLimits = DEFAULT_STREAMS
    ) -> TwinProcess:
        if id in self.processes:
            return self.processes[id]
        if isinstance(program, Guest) and program.kept:
            (await self.backend.probe()).demand("keeping")
        script = self._script(program, timeout_ms)
        process = self.processes[id] = TwinProcess(program, id, streams, self.files)
        process.play(script, timeout_ms or self.spec.limits.timeout_ms)
        return process

    def _script(self, program: Program, timeout_ms: int | None) -> Script:
        if self.gone:
            raise SandboxGone(f"sandbox {self.handle} is unknown here")
        if not self.processes or not self.spec.single:
            request = program.request if isinstance(program, Guest) else {}
            if request.get("op") == "clear":
                self.backend.clears += 1
                return self._clear
            self.backend.started.append(Started(self.spec, request, timeout_ms))
            return self.backend.script
        if self.backend.left is None:
            raise SandboxGone("it ended with its program")
        return self.backend.left

    async def _clear(self, process: TwinProcess) -> None:
        """Clears it as the guest does, and says so."""
        for name in ("tmp", "dev/shm"):
            for entry in await self.entries(f"/{name}"):
                self.files.remove(f"/{name}/{entry.name}")
        told = json.dumps({"left": self.backend.not_cleared}).encode()
        process.write(b"R" + len(told).to_bytes(4) + told)

    async def process(self, id: str) -> TwinProcess:
        if id not in self.processes:
            raise SandboxGone(f"process {id} is unknown here")
        return self.processes[id]

    @property
    def proxy_port(self) -> int:
        return PROXY_PORT

    async def plug(self, egress: Egress) -> None:
        """Notes the session: a twin reaches nobody."""
        self.plugged.append(egress)

    async def end(self) -> Usage:
        self.gone = True
        for process in self.processes.values():
            await process.discard()
        return Usage(wall_ms=(time.monotonic() - self.began) * 1000)


@dataclass
class TwinHost:
    """Everything that outlives a server: the sandboxes of backends, by handle."""

    held: dict[str, TwinSandbox] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))


async def succeed(_process: TwinProcess) -> None:
    """Does nothing, and exits 0."""


class TwinBackend:
    """Implements the port, save for forwarding and snapshots. ``script`` plays every program.

    Backends over one ``host`` are servers one after another: TASK sandboxes stay on it.
    """

    name = "twin"
    nature = Nature()

    def __init__(self, script: Script = succeed, host: TwinHost | None = None) -> None:
        self.script = script
        self.left: Script | None = None
        """Plays a second program in a sandbox for one; without it such a sandbox ends with its first."""
        self.protections = dict(ALL_WALLS)
        self.in_force: dict[str, str] = {}
        """Levels that its sandboxes have instead of those that it offers."""
        self.abilities: dict[str, Protection] = {}
        self.ready = True
        self.foreign: list[Held] = []
        """Sandboxes that the survey tells of beside its own."""
        self.faults: list[Exception] = []
        """Raised by the next creates, one each."""
        self.gate: asyncio.Event | None = None
        """Holds every create until it is set."""
        self.faulty: dict[str, str] = {}
        """Modules that cannot be imported ahead, and why."""
        self.started: list[Started] = []
        self.clears = 0
        """How often a sandbox was cleared for the next program."""
        self.not_cleared: list[str] = []
        """Names that each clearing leaves."""
        self.platform: Platform | None = None
        """The platform of its sandboxes' interpreter; None for this server's own."""
        self.destroyed: list[str] = []
        self.prepared: list[SandboxSpec] = []
        self._host = host or TwinHost()
        self._keeps = host is not None

    @property
    def held(self) -> dict[str, TwinSandbox]:
        return self._host.held

    async def probe(self) -> Probe:
        return Probe(self.name, self.ready, dict(self.protections), {"version": "1"}, dict(self.abilities))

    async def create(self, spec: SandboxSpec, key: str) -> TwinSandbox:
        for held in self.held.values():
            if held.key == key:
                return held
        if self.faults:
            raise self.faults.pop(0)
        await self._demand(spec)
        files = Files(spec.limits.disk_mb << 20)
        for mount in spec.mounts:
            node = await _shown(mount.source)
            for path in (mount.target, *mount.aliases):
                files.show(path, node)
        if spec.environment.packages is not None:
            files.show("/packages", await _shown(spec.environment.packages))
        for held in self.held.values():  # made while the content came
            if held.key == key:
                return held
        handle = f"{self.name}-{next(self._host.numbers)}"
        sandbox = self.held[handle] = TwinSandbox(self, handle, key, spec, files)
        if self.gate is not None:
            await self.gate.wait()
        return sandbox

    async def platform_of(self, _spec: SandboxSpec) -> Platform | None:
        return self.platform

    async def _demand(self, spec: SandboxSpec) -> None:
        spec.refuse_names(self.name)
        spec.environment.check_fits(self.platform)
        if not self.ready:
            raise ProtectionMissing("the twin is told to be not ready")
        Demand(spec.kernel_only, spec.allow_degraded).check(self.protections)
        probe = await self.probe()
        if spec.egress is not None:
            probe.demand("egress")
        if spec.forwarding:
            probe.demand("forwarding")

    async def attach(self, handle: str) -> TwinSandbox:
        if handle not in self.held:
            raise SandboxGone(f"sandbox {handle} is unknown here")
        return self.held[handle]

    async def survey(self) -> Sequence[Held]:
        now = time.monotonic()
        mine = [Held(each.handle, each.key, each.spec.owner, now - each.began) for each in self.held.values()]
        return [*mine, *self.foreign]

    async def destroy(self, handle: str) -> Usage:
        self.destroyed.append(handle)
        self.foreign = [held for held in self.foreign if held.handle != handle]
        sandbox = self.held.pop(handle, None)
        return Usage() if sandbox is None else await sandbox.end()

    async def prepare(self, spec: SandboxSpec) -> Prepared | None:
        self.prepared.append(spec)
        asked = spec.environment.preload
        faults = {name: self.faulty[name] for name in asked if name in self.faulty}
        return Prepared(tuple(name for name in asked if name not in faults), faults, 1 << 20)

    async def close(self) -> None:
        for handle, sandbox in list(self.held.items()):
            if sandbox.spec.owner is Owner.RUN or not self._keeps:
                await self.destroy(handle)


async def _shown(source: Content | HostDirectory) -> Node:
    """Returns content as it is shown. Raises SandboxFault, and what an opener raises."""
    try:
        if source.path is not None:
            return from_host(source.path)
        assert isinstance(source, Content)
        assert source.open is not None
        data = b"".join([chunk async for chunk in source.open()])
        if hashlib.sha256(data).hexdigest() != source.digest:
            raise SandboxFault(f"content: {source.digest} was asked for, and other bytes came")
        return from_tar(data) if source.tree else Node("file", 0o444, data, read_only=True)
    except OSError as error:
        raise SandboxFault(f"content: {error}") from error
    except ArchiveRefused as refused:
        raise SandboxFault(f"content: {refused}") from None
