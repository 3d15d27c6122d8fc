"""A backend that does at once what a test's script says, and skills made of values."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillyard.domain.errors import OutputDropped, SandboxGone, SkillNotFound
from skillyard.domain.network.session import Egress
from skillyard.domain.sandbox.guarantees import PROTECTIONS, Level, Nature, Probe, Protection
from skillyard.domain.sandbox.spec import (
    DEFAULT_STREAMS,
    Entry,
    Guest,
    Held,
    Prepared,
    Program,
    SandboxSpec,
    Stream,
    StreamLimits,
)
from skillyard.domain.skill.skill import (
    Finding,
    Needs,
    RuntimeSpec,
    Skill,
    SkillFile,
    SkillFormat,
    SkillKind,
    SkillLine,
    SkillSource,
)
from skillyard.domain.work.record import Ending, Outcome, Usage

_PIECE = 128 * 1024
ALL_WALLS = {name: Protection(Level.KERNEL) for name in PROTECTIONS}


def frame(kind: bytes, payload: bytes) -> bytes:
    return kind + len(payload).to_bytes(4, "big") + payload


def js(value: Any) -> bytes:
    return json.dumps(value).encode()


def result(value: Any) -> bytes:
    return frame(b"R", js(value))


def raises(type_: str, message: str, traceback: str = "", **more: Any) -> bytes:
    return frame(b"X", js({"type": type_, "message": message, "traceback": traceback, **more}))


def blob(n: int, kind: str, *pieces: bytes, size: int | None = None) -> bytes:
    out = frame(b"B", js({"n": n, "kind": kind}))
    for piece in pieces:
        out += frame(b"D", n.to_bytes(4, "big") + piece)
    total = sum(map(len, pieces)) if size is None else size
    return out + frame(b"E", js({"n": n, "size": total}))


class FakeProcess:
    """Written to by a script, read by the engine."""

    def __init__(self, id: str, request: Mapping[str, Any]) -> None:
        self.id = id
        self.request = request
        self.killed: str | None = None
        self.ended = asyncio.get_running_loop().create_future()
        self.cuts = 0
        """How often the connection to it breaks from now on, at once."""
        self._data: dict[Stream, bytearray] = {stream: bytearray() for stream in Stream}
        self.log_kept_from = 0
        """The first byte of the log that its ring still has."""
        self._changed = asyncio.Event()

    def write(self, data: bytes, stream: Stream = Stream.CHANNEL) -> None:
        self._data[stream] += data
        self._changed.set()

    def log(self, data: bytes) -> None:
        self.write(data, Stream.STDOUT)

    def end(self, ending: Ending | None = None) -> None:
        if not self.ended.done():
            usage = Usage(cpu_ms=1.0, peak_memory_bytes=1 << 20, source="cgroup")
            self.ended.set_result(ending or Ending(Outcome.EXIT, code=0, usage=usage))
            self._changed.set()

    async def output(self, stream: Stream, offset: int = 0) -> AsyncIterator[bytes]:
        while True:
            if stream is Stream.STDOUT and offset < self.log_kept_from:
                raise OutputDropped(self.log_kept_from)
            data = bytes(self._data[stream][offset : offset + _PIECE])
            if data:
                offset += len(data)
                yield data
            elif self.ended.done() or self.cuts:
                return
            else:
                self._changed.clear()
                await self._changed.wait()

    async def send(self, data: bytes) -> None:
        raise SandboxGone("a guest reads no input")

    async def close_stdin(self) -> None:
        return

    def cut_off(self, times: int = 1) -> None:
        self.cuts = times
        self._changed.set()

    async def wait(self) -> Ending:
        if self.cuts:
            self.cuts -= 1
            return Ending(Outcome.LOST, cut_off=True)
        ending: Ending = await asyncio.shield(self.ended)
        return ending

    async def kill(self, reason: str = "") -> None:
        if not self.ended.done():
            self.killed = reason
            self.end(Ending(Outcome.CANCELLED, reason=reason))


Script = Callable[[FakeProcess], Awaitable[None]]


@dataclass
class FakeSandbox:
    backend: FakeBackend
    handle: str
    key: str
    spec: SandboxSpec
    enforced: dict[str, str]
    processes: dict[str, FakeProcess] = field(default_factory=dict)
    plugged: list[Egress] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(
        self,
        program: Program,
        *,
        id: str,
        timeout_ms: int | None = None,
        streams: StreamLimits = DEFAULT_STREAMS,
    ) -> FakeProcess:
        assert isinstance(program, Guest)
        if id in self.processes:
            return self.processes[id]
        if program.request["op"] == "collect":
            if self.backend.left is None:
                raise SandboxGone("it ended with its program")
            process = self.processes[id] = FakeProcess(id, program.request)
            if callable(self.backend.left):
                self.tasks.append(asyncio.create_task(self.backend.left(process)))
                return process
            process.write(self.backend.left)
            process.end()
            return process
        self.backend.started.append((self.spec, program.request, timeout_ms))
        process = self.processes[id] = FakeProcess(id, program.request)
        self.tasks.append(asyncio.create_task(self._play(process)))
        return process

    async def _play(self, process: FakeProcess) -> None:
        await self.backend.script(process)
        process.end()

    async def plug(self, egress: Egress) -> None:
        self.plugged.append(egress)

    async def process(self, id: str) -> FakeProcess:
        if id not in self.processes:
            raise SandboxGone(f"no process {id}")
        return self.processes[id]

    def read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        raise NotImplementedError

    async def write(self, path: str, chunks: AsyncIterator[bytes], *, mode: int = 0o644) -> int:
        raise NotImplementedError

    async def entries(self, path: str) -> Sequence[Entry]:
        raise NotImplementedError

    async def stat(self, path: str) -> Entry:
        raise NotImplementedError

    async def remove(self, path: str) -> None:
        raise NotImplementedError

    async def put(self, path: str, chunks: AsyncIterator[bytes]) -> None:
        raise NotImplementedError

    def get(self, path: str) -> AsyncIterator[bytes]:
        raise NotImplementedError


async def succeed(process: FakeProcess) -> None:
    process.write(result({"ok": True}))


class FakeBackend:
    """``script`` plays every program. ``protections`` are what it offers; ``faults`` are raised by create."""

    name = "fake"
    nature = Nature()

    def __init__(self, script: Script = succeed) -> None:
        self.script = script
        self.left: bytes | Callable[[FakeProcess], Coroutine[Any, Any, None]] | None = None
        """What a second program sends, or does; None when the sandbox ends with the first."""
        self.protections = dict(ALL_WALLS)
        self.abilities: dict[str, Protection] = {}
        self.held: dict[str, FakeSandbox] = {}
        self.foreign: list[Held] = []
        self.started: list[tuple[SandboxSpec, Mapping[str, Any], int | None]] = []
        self.destroyed: list[str] = []
        self.faults: list[Exception] = []
        self.gate: asyncio.Event | None = None
        self.ready = True
        self.prepared: list[SandboxSpec] = []
        self.faulty: dict[str, str] = {}
        """Modules that cannot be imported ahead, and why."""
        self._numbers = itertools.count(1)

    async def probe(self) -> Probe:
        return Probe("fake", self.ready, dict(self.protections), {"version": "1"}, dict(self.abilities))

    async def create(self, spec: SandboxSpec, key: str) -> FakeSandbox:
        for held in self.held.values():
            if held.key == key:
                return held
        if self.faults:
            raise self.faults.pop(0)
        handle = f"fake-{next(self._numbers)}"
        enforced = {name: p.level.value for name, p in self.protections.items()}
        sandbox = self.held[handle] = FakeSandbox(self, handle, key, spec, enforced)
        if self.gate is not None:
            await self.gate.wait()
        return sandbox

    async def attach(self, handle: str) -> FakeSandbox:
        if handle not in self.held:
            raise SandboxGone(handle)
        return self.held[handle]

    async def survey(self) -> Sequence[Held]:
        mine = [Held(s.handle, s.key, s.spec.owner, 0.0) for s in self.held.values()]
        return [*mine, *self.foreign]

    async def destroy(self, handle: str) -> Usage:
        self.destroyed.append(handle)
        self.foreign = [held for held in self.foreign if held.handle != handle]
        sandbox = self.held.pop(handle, None)
        if sandbox is not None:
            for process in sandbox.processes.values():
                process.end(Ending(Outcome.CANCELLED))
            for task in sandbox.tasks:
                task.cancel()
            await asyncio.gather(*sandbox.tasks, return_exceptions=True)
        return Usage()

    async def prepare(self, spec: SandboxSpec) -> Prepared | None:
        self.prepared.append(spec)
        asked = spec.environment.preload
        faults = {name: self.faulty[name] for name in asked if name in self.faulty}
        return Prepared(tuple(name for name in asked if name not in faults), faults, 1 << 20)

    async def close(self) -> None:
        for handle in list(self.held):
            await self.destroy(handle)


class FakeSkills:
    """Skills by name; the last version added of a name is the latest."""

    def __init__(self, *skills: Skill) -> None:
        self.skills: dict[str, list[Skill]] = {}
        self.changes = 0
        for skill in skills:
            self.add(skill)

    def add(self, skill: Skill) -> None:
        self.skills.setdefault(skill.name, []).append(skill)
        self.changes += 1

    async def revision(self) -> str:
        return str(self.changes)

    async def page(self, after: str | None, limit: int, namespace: str | None = None) -> Sequence[SkillLine]:
        below = f"{namespace}."
        names = [n for n in sorted(self.skills) if namespace is None or n == namespace or n.startswith(below)]
        return [self.skills[name][-1].line for name in names if after is None or name > after][:limit]

    async def names(self) -> Sequence[str]:
        return sorted(self.skills)

    async def get(self, name: str, version: str | None = None) -> Skill:
        for skill in reversed(self.skills.get(name, [])):
            if version in (None, skill.version):
                return skill
        raise SkillNotFound("name", f"no skill '{name}'", skill=name)

    async def versions(self, name: str) -> Sequence[str]:
        if name not in self.skills:
            raise SkillNotFound("name", f"no skill '{name}'", skill=name)
        return [skill.version for skill in reversed(self.skills[name])]

    async def not_published(self, name: str) -> frozenset[str]:
        found = self.skills.get(name, [])
        return frozenset(skill.version for skill in found if skill.source is not SkillSource.PUBLISHED)

    async def pinned(self, _name: str) -> str | None:
        return None

    async def refresh(self, _name: str) -> None:
        self.changes += 1

    async def problems(self) -> Sequence[Finding]:
        return []


def a_skill(
    name: str,
    root: Path = Path("/nonexistent"),
    *,
    version: str = "1.0.0",
    kind: SkillKind = SkillKind.ACTION,
    needs: Needs | None = None,
    environment: str = "base",
    language: str = "python",
    body: str = "# A skill\n",
    files: tuple[SkillFile, ...] = (),
    inputs: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | None = None,
    format: SkillFormat = SkillFormat.PROTOCOL,
    source: SkillSource = SkillSource.DIRECTORY,
) -> Skill:
    action = kind is SkillKind.ACTION
    return Skill(
        name=name,
        version=version,
        kind=kind,
        format=format,
        description=f"The skill {name}",
        namespace=name.partition(".")[0],
        root=root,
        digest=f"sha256-of-{name}-{version}",
        manifest={"name": name, "version": version, "kind": kind.value},
        frontmatter={"name": name},
        body=body,
        files=files,
        runtime=RuntimeSpec(language, "code/main.py", "main", environment) if action else None,
        needs=needs or Needs(),
        inputs_schema=inputs,
        outputs_schema=outputs,
        source=source,
    )
