"""A backend that knows nothing but exec: one bubblewrap invocation for each program, over a directory tree for
each sandbox. Test-only: it proves that the port is not shaped by fork, and serves the engine's tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from skillyard.domain.errors import ProtectionMissing, SandboxFault, SandboxGone
from skillyard.domain.sandbox.guarantees import Demand, Nature, Probe
from skillyard.domain.sandbox.spec import (
    DEFAULT_STREAMS,
    Argv,
    Guest,
    Held,
    Owner,
    Program,
    SandboxSpec,
    Stream,
    StreamLimits,
    encode_request,
)
from skillyard.domain.work.record import Usage
from skillyard.sandbox.content import bound
from skillyard.sandbox.file_programs import LIFETIME_MS, STREAMS, FilesOfSandbox
from skillyard.sandbox.guest_argv import descriptor, files_argv, guest_argv, guest_bundle
from tests.conformance.sandbox import exec_inside, exec_walls
from tests.conformance.sandbox.exec_probe import LOOK, absent, judge
from tests.conformance.sandbox.exec_process import ExecProcess, Launch


@dataclass
class ExecSandbox(FilesOfSandbox):
    handle: str
    key: str
    spec: SandboxSpec
    root: Path
    enforced: dict[str, str]
    began: float = field(default_factory=time.monotonic)
    processes: dict[str, ExecProcess] = field(default_factory=dict)
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def start(
        self,
        program: Program,
        *,
        id: str,
        timeout_ms: int | None = None,
        streams: StreamLimits = DEFAULT_STREAMS,
    ) -> ExecProcess:
        async with self.starting:
            if id not in self.processes:
                launch = self._launch(program)
                limit = self.spec.limits.timeout_ms if timeout_ms is None else timeout_ms
                process = ExecProcess(id, streams, limit)
                await process.launch(launch)
                self.processes[id] = process
            return self.processes[id]

    def _launch(self, program: Program) -> Launch:
        if not self.root.exists():
            raise SandboxGone(f"no sandbox {self.handle}")
        if isinstance(program, Guest):
            request = encode_request(program.request)
            return Launch(_Command(self, program), merged=True, stdin=False, request=request)
        return Launch(_Command(self, program), merged=False, stdin=program.stdin)

    async def process(self, id: str) -> ExecProcess:
        if id not in self.processes:
            raise SandboxGone(f"no process {id} in sandbox {self.handle}")
        return self.processes[id]

    async def start_files(self) -> ExecProcess:
        argv = files_argv(exec_walls.python(), exec_walls.GUEST)
        return await self.start(argv, id=f".files-{uuid.uuid4().hex}", timeout_ms=LIFETIME_MS, streams=STREAMS)


@dataclass(frozen=True)
class _Command:
    """The argv of a program, once the numbers of its descriptors are known."""

    sandbox: ExecSandbox
    program: Program

    def __call__(self, numbers: Mapping[str, int]) -> list[str]:
        if isinstance(self.program, Guest):
            kept = f"{numbers['request']},{numbers['channel']}"
            names = descriptor(numbers["request"]), descriptor(numbers["channel"])
            program = guest_argv("python3", exec_walls.GUEST, *names)
        else:
            program, kept = self.program, ""
        words = ["-I", "-S", "-c", exec_inside.INIT, str(numbers["report"]), str(numbers["leash"]), kept, program.cwd]
        return exec_walls.command(
            self.sandbox.root,
            self.sandbox.spec,
            [exec_walls.python(), *words, *program.args],
            env=program.env,
            info=numbers["info"],
        )


class ExecBackend:
    """Sandboxes that live as long as this object. ``base`` is where their directory trees go."""

    name = "exec"
    nature = Nature()

    def __init__(self, base: Path | None = None) -> None:
        self._base = base
        self._held: dict[str, ExecSandbox] = {}
        self._probe: Probe | None = None

    async def probe(self) -> Probe:
        if self._probe is None:
            self._probe = await self._look()
        return self._probe

    async def _look(self) -> Probe:
        if why := exec_walls.missing_tools():
            return absent(why)
        root = self._tree()
        try:
            sandbox = ExecSandbox("probe", "probe", SandboxSpec(), root, {})
            process = await sandbox.start(Argv(("python3", "-I", "-c", LOOK)), id="look")
            seen = b"".join([data async for data in process.output(Stream.STDOUT)])
            said = b"".join([data async for data in process.output(Stream.STDERR)])
            await process.discard()
            return judge(json.loads(seen), exec_walls.host_uid()) if seen else absent(said.decode())
        finally:
            await _remove(root)

    async def create(self, spec: SandboxSpec, key: str) -> ExecSandbox:
        for sandbox in self._held.values():
            if sandbox.key == key:
                return sandbox
        probe = await self.probe()
        spec.refuse_names(self.name)
        Demand(spec.kernel_only, spec.allow_degraded).check(probe.protections)
        if spec.egress is not None:
            probe.demand("egress")
        if spec.owner is Owner.TASK:
            raise ProtectionMissing("the exec backend keeps no sandbox alive without its server")
        for mount in spec.mounts:
            if not bound(mount.source).exists():
                raise SandboxFault(f"the source of the mount {mount.target} is missing")
        sandbox = ExecSandbox(f"exec-{uuid.uuid4().hex}", key, spec, self._tree(), probe.enforced())
        self._held[sandbox.handle] = sandbox
        return sandbox

    def _tree(self) -> Path:
        root = Path(tempfile.mkdtemp(prefix="skillyard-exec-", dir=self._base))
        for name in exec_walls.WRITABLE:
            (root / name).mkdir(mode=0o700)
            if exec_walls.as_root():
                os.chown(root / name, exec_walls.NOBODY, exec_walls.NOBODY)
        exec_walls.write_etc(root / "etc")
        (root / "guest.pyz").write_bytes(guest_bundle())
        return root

    async def attach(self, handle: str) -> ExecSandbox:
        if handle not in self._held:
            raise SandboxGone(f"no sandbox {handle}")
        return self._held[handle]

    async def survey(self) -> Sequence[Held]:
        now = time.monotonic()
        return [Held(s.handle, s.key, s.spec.owner, now - s.began) for s in self._held.values()]

    async def destroy(self, handle: str) -> Usage:
        sandbox = self._held.pop(handle, None)
        if sandbox is None:
            return Usage()
        sandbox.lost_files()
        async with sandbox.starting:
            used = [await process.discard() for process in sandbox.processes.values()]
            sandbox.processes.clear()
            await _remove(sandbox.root)
        return _total(used, time.monotonic() - sandbox.began)

    async def prepare(self, spec: SandboxSpec) -> None:
        """Nothing can be made ahead."""

    async def close(self) -> None:
        for handle in list(self._held):
            await self.destroy(handle)


def _total(used: Sequence[Usage], wall_s: float) -> Usage:
    cpu = [usage.cpu_ms for usage in used if usage.cpu_ms is not None]
    peak = [usage.peak_memory_bytes for usage in used if usage.peak_memory_bytes is not None]
    return Usage(
        cpu_ms=sum(cpu) if cpu else None,
        peak_memory_bytes=max(peak, default=None),
        wall_ms=wall_s * 1000,
    )


async def _remove(root: Path) -> None:
    """A tree of any depth, with names and modes of any kind: coreutils manage it, shutil does not."""
    for tool in (["chmod", "-R", "-f", "u+rwx"], ["rm", "-rf", "--one-file-system"]):
        process = await asyncio.create_subprocess_exec(*tool, "--", str(root), stderr=subprocess.DEVNULL)
        await process.wait()
    if root.exists():
        raise SandboxFault(f"{root} could not be removed")
