"""The ground of checks: a backend, a scratch directory, and short ways to run programs."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillyard.domain.sandbox.guarantees import Level
from skillyard.domain.sandbox.spec import (
    DEFAULT_STREAMS,
    Argv,
    Guest,
    GuestCall,
    Program,
    SandboxSpec,
    Stream,
    StreamLimits,
)
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Ending, Outcome
from skillyard.ports.sandbox import Backend, Process, Sandbox
from skillyard.testing.twin_gate import TwinGate

POLL_S = 0.02
ROOT = "SKILLYARD_ROOT"
HERE = f"""
import os
HERE = os.environ.get({ROOT!r}, '')
"""
"""Begins each program that says HERE: what stands before the paths of the port, where a backend cannot show them as
they are. It names the place in the sandbox's environment then."""


@dataclass(frozen=True, slots=True)
class Done:
    """A program that ended, with all that it wrote."""

    ending: Ending
    stdout: bytes
    stderr: bytes
    channel: bytes


@dataclass(frozen=True)
class Ground:
    """``scratch`` is an empty directory of the host, for mount sources and canaries. ``hidden`` are further paths
    of the host that nothing inside may see (the data directory). ``reopen`` gives a backend over a state
    apart from ``backend``'s and the same at every call, as a server has it that is started again; None where
    sandboxes die with the server that made them. ``witness`` gives the processes of the host that a sandbox is made
    of, by its handle, where its programs are none themselves (a kernel of its own). ``variables`` are names that the
    backend documents as further parts of a sandbox's environment. ``keeps_bounding_set``: an ordinary user without a
    user namespace cannot empty it; no_new_privs then sees to it that nothing is gained from it. ``patience`` multiplies
    the time that a check and a program of it may take, where a sandbox takes much longer than milliseconds to make.
    ``gate`` is what the backend, and what ``reopen`` gives, plugs sandboxes into.
    """

    backend: Backend
    scratch: Path
    hidden: Sequence[Path] = ()
    reopen: Callable[[], Awaitable[Backend]] | None = None
    witness: Callable[[str], Awaitable[list[int]]] | None = None
    patience: float = 1.0
    gate: TwinGate | None = None
    variables: frozenset[str] = frozenset()
    keeps_bounding_set: bool = False

    async def spec(self, limits: Limits | None = None, **options: Any) -> SandboxSpec:
        """A spec that accepts what the probe calls missing: each wall has its own check."""
        probe = await self.backend.probe()
        missing = frozenset(n for n, p in probe.protections.items() if p.level is Level.MISSING)
        return SandboxSpec(
            limits=limits or Limits(timeout_ms=int(20_000 * self.patience)), allow_degraded=missing, **options
        )

    async def supervises(self, name: str) -> bool:
        """Whether a limit is only watched: who passes it is ended, and is not refused before."""
        return (await self.backend.probe()).protections[name].level is Level.SUPERVISED

    @asynccontextmanager
    async def sandbox(self, limits: Limits | None = None, **options: Any) -> AsyncIterator[Sandbox]:
        """A sandbox for one check, destroyed after it."""
        sandbox = await self.backend.create(await self.spec(limits, **options), fresh("key"))
        try:
            yield sandbox
        finally:
            await self.backend.destroy(sandbox.handle)

    async def run(self, program: Program, limits: Limits | None = None, **options: Any) -> Done:
        """Run one program in a sandbox of its own."""
        async with self.sandbox(limits, **options) as sandbox:
            return await run(sandbox, program)

    async def look(self, source: str, *args: str, **options: Any) -> Any:
        """Returns the JSON that a Python program prints in a sandbox of its own."""
        async with self.sandbox(**options) as sandbox:
            return await look(sandbox, source, *args)


def fresh(kind: str) -> str:
    """A name that nothing had before."""
    return f"{kind}-{uuid.uuid4().hex}"


def python(source: str, *args: str, **options: Any) -> Argv:
    """Python source as a command; ``args`` are ``sys.argv[1:]``."""
    return Argv(("python3", "-I", "-c", _placed(source), *args), **options)


def code(source: str, args: Mapping[str, Any] | None = None, **options: Any) -> Guest:
    """Returns Python source as a guest program.

    Its ``main`` is called with ``args``; ``options`` are GuestCall's.
    """
    prefix = f"blob:{uuid.uuid4().hex}-"
    return Guest(GuestCall(prefix, code=_placed(source), args=args or {}, **options).request())


def _placed(source: str) -> str:
    return HERE + source if "HERE" in source else source


async def start(
    sandbox: Sandbox,
    program: Program,
    *,
    timeout_ms: int | None = None,
    streams: StreamLimits = DEFAULT_STREAMS,
) -> Process:
    return await sandbox.start(program, id=fresh("program"), timeout_ms=timeout_ms, streams=streams)


async def run(
    sandbox: Sandbox,
    program: Program,
    *,
    timeout_ms: int | None = None,
    streams: StreamLimits = DEFAULT_STREAMS,
) -> Done:
    return await done(await start(sandbox, program, timeout_ms=timeout_ms, streams=streams))


async def done(process: Process) -> Done:
    """Wait for a process and read all its streams meanwhile."""
    collecting = (collect(process, stream) for stream in (Stream.STDOUT, Stream.STDERR, Stream.CHANNEL))
    ending, streams = await asyncio.gather(process.wait(), asyncio.gather(*collecting))
    return Done(ending, *streams)


async def collect(process: Process, stream: Stream = Stream.STDOUT, offset: int = 0) -> bytes:
    return b"".join([data async for data in process.output(stream, offset)])


async def until(process: Process, text: bytes, stream: Stream = Stream.STDOUT) -> bytes:
    """Read until ``text`` has come; what was read so far. Bounded by the check's deadline."""
    seen = b""
    async for data in process.output(stream):
        seen += data
        if text in seen:
            return seen
    raise AssertionError(f"the program ended before it wrote {text!r}; it wrote {seen[-500:]!r}")


async def eventually(condition: Callable[[], bool], promise: str, bound_s: float) -> None:
    """Raises AssertionError unless ``condition`` comes true within ``bound_s`` seconds."""
    for _ in range(round(bound_s / POLL_S)):
        if condition():
            return
        await asyncio.sleep(POLL_S)
    raise AssertionError(f"{promise}; not so after {bound_s:.0f} s")


async def look(sandbox: Sandbox, source: str, *args: str) -> Any:
    result = await run(sandbox, python(source, *args))
    if result.ending.outcome is not Outcome.EXIT or result.ending.code != 0:
        raise AssertionError(f"the looking program failed: {result.ending}, {result.stderr[-1000:]!r}")
    return json.loads(result.stdout)


async def pieces(data: bytes, size: int = 1 << 16) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def contents(sandbox: Sandbox, path: str, offset: int = 0, length: int | None = None) -> bytes:
    return b"".join([data async for data in sandbox.read(path, offset, length)])
