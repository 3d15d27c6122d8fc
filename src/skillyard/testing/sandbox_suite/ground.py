"""The ground of checks: a backend, a scratch directory, and short ways to programs."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
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


def processes(marker: str) -> list[int]:
    """Pids of this host's processes whose command line holds ``marker``; zombies have none."""
    wanted = marker.encode()
    return [pid for pid in _pids() if wanted in bytes_of(f"/proc/{pid}/cmdline")]


def user_ids(pid: int) -> set[int]:
    """Real, effective, saved and file-system uid of a process, as this host counts them."""
    for line in bytes_of(f"/proc/{pid}/status").decode(errors="replace").splitlines():
        if line.startswith("Uid:"):
            return {int(word) for word in line.split()[1:]}
    return set()


def descriptors() -> int:
    """Returns the open descriptors of the calling process, after the garbage was collected."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def children() -> int:
    """Living and dead children of the calling process."""
    own = str(os.getpid())
    return sum(1 for pid in _pids() if _parent(pid) == own)


@contextmanager
def directory(path: Path) -> Iterator[Path]:
    """A directory of the host for the time of a check, removed whatever its modes are."""
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        _remove(path)


def seal(path: Path) -> None:
    """The modes that stores give what they mount: files 0444, directories 0555."""
    for below in path.rglob("*"):
        below.chmod(0o555 if below.is_dir() else 0o444)
    path.chmod(0o555 if path.is_dir() else 0o444)


def _remove(path: Path) -> None:
    path.chmod(0o700)
    for below in path.iterdir():
        if below.is_dir() and not below.is_symlink():
            _remove(below)
        else:
            below.unlink()
    path.rmdir()


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _parent(pid: int) -> str:
    stat = bytes_of(f"/proc/{pid}/stat").decode(errors="replace")
    return stat.rpartition(")")[2].split()[1] if stat else ""


def bytes_of(path: str) -> bytes:
    with suppress(OSError):
        return Path(path).read_bytes()
    return b""
