"""A backend is one file and one line: this one starts plain processes in a temporary directory.

It is no boundary, and says so: it attests what it can, and a policy that asks for more refuses it before a sandbox is
made. It passes the suite for what it claims.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillyard.config.settings import load_settings
from skillyard.domain.errors import InvalidInput, OutputDropped, ProtectionMissing, SandboxFault, SandboxGone
from skillyard.domain.sandbox.guarantees import GUARANTEES, Demand, Level, Nature, Probe, Protection
from skillyard.domain.sandbox.spec import (
    DEFAULT_STREAMS,
    Argv,
    AtCap,
    Guest,
    Held,
    Owner,
    Prepared,
    Program,
    SandboxSpec,
    Stream,
    StreamLimits,
    encode_request,
)
from skillyard.domain.work.record import Ending, Outcome, Usage
from skillyard.runtime import Runtime
from skillyard.sandbox import registry
from skillyard.sandbox.content import ContentCache, bound
from skillyard.sandbox.file_programs import LIFETIME_MS, STREAMS, FilesOfSandbox
from skillyard.sandbox.guest_argv import descriptor, files_argv, guest_argv, guest_bundle
from skillyard.testing.sandbox_suite import CHECKS, Check, Ground, NotApplicable, examine_all
from skillyard.testing.sandbox_suite.ground import ROOT

pytestmark = pytest.mark.anyio

PYTHON = Path(sys.base_prefix, "bin", "python3")
WRITABLE = ("/workspace", "/tmp", "/dev/shm")
CHUNK = 1 << 18
INIT = """
import ctypes, json, os, resource, select, signal, sys
report, leash, kept, cwd, *argv = sys.argv[1:]
kept = [int(number) for number in kept.split(',') if number]
libc = ctypes.CDLL(None)
libc.prctl(36, 1)
libc.prctl(38, 1, 0, 0, 0)
wake, waker = os.pipe()
os.set_blocking(waker, False)
signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
signal.signal(signal.SIGCHLD, lambda *_: None)
worker = os.fork()
if worker == 0:
    low = 3
    for fd in (*sorted(kept), 1 << 20):
        os.closerange(low, fd)
        low = fd + 1
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ): signal.signal(number, signal.SIG_DFL)
    os.setsid()
    try:
        os.chdir(cwd)
        os.execvp(argv[0], argv)
    except OSError as failure:
        os.write(2, f'{argv[0]}: {failure.strerror}\\n'.encode(errors='replace'))
        os._exit(126 if isinstance(failure, PermissionError) else 127)
for fd in (0, 1, 2, *kept): os.close(fd)
status = None
while status is None and int(leash) not in select.select([int(leash), wake], [], [])[0]:
    os.read(wake, 512)
    while status is None and (ended := os.waitpid(-1, os.WNOHANG))[0]:
        if ended[0] == worker: status = ended[1]
while True:
    for child in open(f'/proc/self/task/{os.getpid()}/children').read().split(): os.kill(int(child), 9)
    try: os.waitpid(-1, 0)
    except ChildProcessError: break
used = resource.getrusage(resource.RUSAGE_CHILDREN)
told = {'status': status, 'cpu_ms': (used.ru_utime + used.ru_stime) * 1000, 'rss': used.ru_maxrss * 1024}
os.write(int(report), json.dumps(told).encode())
"""
"""Starts one program, takes in what it leaves (a subreaper), and ends all of it when it or the host ends."""


class Spool:
    """A stream on disk: appended as it comes, as long as ``budget`` has bytes left, and read from any offset."""

    def __init__(self, budget: list[int], kept: int | None = None) -> None:
        """With ``kept`` only the last bytes count."""
        self._kept = kept
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._budget = budget
        self._changed = asyncio.Event()
        self._ended = False

    def take(self, data: bytes) -> bool:
        """Returns whether all of it was kept."""
        kept = data[: self._budget[0]]
        self._budget[0] -= len(kept)
        self._file.seek(0, os.SEEK_END)
        self._file.write(kept)
        self._file.flush()
        self._tell()
        return len(kept) == len(data)

    def end(self, *, close: bool = False) -> None:
        self._ended = True
        self._tell()
        if close:
            self._file.close()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def read(self, offset: int) -> AsyncIterator[bytes]:
        while True:
            if self._file.closed:
                raise SandboxGone("the sandbox was destroyed")
            first = 0 if self._kept is None else max(0, os.fstat(self._file.fileno()).st_size - self._kept)
            if offset < first:
                raise OutputDropped(first)
            if data := os.pread(self._file.fileno(), CHUNK, offset):
                offset += len(data)
                yield data
            elif self._ended:
                return
            else:
                await self._changed.wait()


def _spools(streams: StreamLimits) -> dict[Stream, Spool]:
    stderr = streams.log_bytes if streams.stderr_bytes is None else streams.stderr_bytes
    if streams.at_cap is AtCap.RING:
        logs = Spool([sys.maxsize], streams.log_bytes), Spool([sys.maxsize], stderr)
    else:
        budget = [streams.log_bytes]
        logs = Spool(budget), Spool(budget if streams.stderr_bytes is None else [stderr])
    return {Stream.STDOUT: logs[0], Stream.STDERR: logs[1], Stream.CHANNEL: Spool([streams.channel_bytes])}


class ToyProcess:
    def __init__(self, id: str, timeout_ms: int, streams: StreamLimits) -> None:
        self.id = id
        self._timeout_s = timeout_ms / 1000
        self._spools = _spools(streams)
        self._verdict: tuple[Outcome, str] | None = None

    async def start(self, root: Path, env: dict[str, str], argv: Argv | None, request: dict[str, Any] | None) -> None:
        """Start a command, or the guest with a request."""
        leash, self._leash = os.pipe()
        self._report, report = os.pipe()
        channel_out, channel = os.pipe()
        with tempfile.TemporaryFile() as asked:
            asked.write(b"" if request is None else encode_request(request))
            asked.seek(0)
            kept = () if request is None else (asked.fileno(), channel)
            program = argv or guest_argv("python3", str(root / "guest.pyz"), *map(descriptor, kept))
            words: tuple[str, ...] = (str(report), str(leash), ",".join(map(str, kept)), str(inside(root, program.cwd)))
            self._init = await asyncio.create_subprocess_exec(
                *(str(PYTHON), "-I", "-S", "-c", INIT, *words, *program.args),
                stdin=subprocess.PIPE if program.stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if request is None else subprocess.STDOUT,
                pass_fds=(report, leash, *kept),
                env=env | dict(program.env),
            )
        for fd in (leash, report, channel):
            os.close(fd)
        self._began = time.monotonic()
        frames = asyncio.StreamReader(CHUNK)
        reading = asyncio.StreamReaderProtocol(frames)
        self._channel, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: reading, os.fdopen(channel_out))
        pipes = {Stream.STDOUT: self._init.stdout, Stream.STDERR: self._init.stderr, Stream.CHANNEL: frames}
        drains = [self._drain(self._spools[s], pipe) for s, pipe in pipes.items() if pipe is not None]
        self._ending = asyncio.create_task(self._supervise(drains))

    async def _drain(self, spool: Spool, pipe: asyncio.StreamReader) -> None:
        while data := await pipe.read(CHUNK):
            if not spool.take(data):
                self._end(Outcome.OUTPUT, "it wrote more than its limit")

    async def _supervise(self, drains: Sequence[Any]) -> Ending:
        timer = asyncio.get_running_loop().call_later(self._timeout_s, self._end, Outcome.TIMEOUT, "it took too long")
        await asyncio.gather(self._init.wait(), *drains)
        timer.cancel()
        self._channel.close()
        if self._verdict is None:
            os.close(self._leash)
        with os.fdopen(self._report, "rb") as report:
            told = json.loads(report.read() or b"{}")
        for spool in self._spools.values():
            spool.end()
        wall_ms = (time.monotonic() - self._began) * 1000
        usage = Usage(cpu_ms=told.get("cpu_ms"), peak_memory_bytes=told.get("rss"), wall_ms=wall_ms)
        if self._verdict is not None:
            return Ending(self._verdict[0], reason=self._verdict[1], usage=usage)
        if told.get("status") is None:
            return Ending(Outcome.LOST, reason="its init ended without a report", usage=usage)
        code = os.waitstatus_to_exitcode(told["status"])
        if code < 0:
            return Ending(Outcome.SIGNAL, signal=-code, reason=signal.Signals(-code).name, usage=usage)
        return Ending(Outcome.EXIT, code=code, usage=usage)

    def _end(self, outcome: Outcome, reason: str) -> None:
        """The init ends the tree when the leash is let go."""
        if self._verdict is None and not self._ending.done():
            self._verdict = (outcome, reason)
            os.close(self._leash)

    async def output(self, stream: Stream, offset: int = 0) -> AsyncIterator[bytes]:
        async for data in self._spools[stream].read(offset):
            yield data

    async def send(self, data: bytes) -> None:
        pipe = self._init.stdin
        if pipe is None or pipe.is_closing() or self._ending.done():
            raise SandboxGone("nobody reads this standard input")
        try:
            pipe.write(data)
            await pipe.drain()
        except (BrokenPipeError, ConnectionResetError) as failure:
            raise SandboxGone("nobody reads this standard input") from failure

    async def close_stdin(self) -> None:
        if self._init.stdin is not None:
            self._init.stdin.close()

    async def wait(self) -> Ending:
        return await asyncio.shield(self._ending)

    async def kill(self, reason: str = "") -> None:
        self._end(Outcome.CANCELLED, reason)

    async def discard(self) -> Usage:
        self._end(Outcome.CANCELLED, "the sandbox is destroyed")
        ending = await self.wait()
        await self.close_stdin()
        for spool in self._spools.values():
            spool.end(close=True)
        return ending.usage


def inside(root: Path, path: str) -> Path:
    """Where a path of the port lies: a sandbox has no root of its own."""
    return root / path.lstrip("/")


class ToySandbox(FilesOfSandbox):
    def __init__(self, key: str, spec: SandboxSpec, root: Path, enforced: dict[str, str]) -> None:
        self.handle = root.name
        self.key, self.spec, self.root, self.enforced = key, spec, root, enforced
        self.began = time.monotonic()
        self.processes: dict[str, ToyProcess] = {}
        self.gone = False
        self.starting = asyncio.Lock()

    async def start(
        self, program: Program, *, id: str, timeout_ms: int | None = None, streams: StreamLimits = DEFAULT_STREAMS
    ) -> ToyProcess:
        async with self.starting:
            if self.gone:
                raise SandboxGone(f"sandbox {self.handle} is unknown here")
            if id not in self.processes:
                process = ToyProcess(id, timeout_ms or self.spec.limits.timeout_ms, streams)
                if isinstance(program, Guest):
                    await process.start(self.root, self._env(), None, self._placed(program))
                else:
                    await process.start(self.root, self._env(), program, None)
                self.processes[id] = process
            return self.processes[id]

    def _env(self) -> dict[str, str]:
        path = f"{self.root}/python/bin:/usr/bin:/bin"
        own = {"HOME": f"{self.root}/workspace", "TMPDIR": f"{self.root}/tmp", ROOT: str(self.root)}
        return {"PATH": path, "LANG": "C.UTF-8", **own}

    def _placed(self, program: Guest) -> dict[str, Any]:
        asked = program.request
        skills = {name: {**s, "root": str(inside(self.root, s["root"]))} for name, s in asked["skills"].items()}
        places = {"workspace": f"{self.root}/workspace", "blob_root": f"{self.root}/blobs"}
        return {**asked, **places, "skills": skills}

    async def process(self, id: str) -> ToyProcess:
        if id not in self.processes:
            raise SandboxGone(f"process {id} is unknown here")
        return self.processes[id]

    def place(self, path: str) -> str:
        return str(inside(self.root, path))

    async def write(self, path: str, chunks: AsyncIterator[bytes], *, mode: int = 0o644) -> int:
        self._writable(inside(self.root, path).parent, path)
        return await super().write(path, chunks, mode=mode)

    async def put(self, path: str, chunks: AsyncIterator[bytes]) -> None:
        self._writable(inside(self.root, path), path)
        await super().put(path, chunks)

    def _writable(self, place: Path, path: str) -> None:
        if not any(place.resolve().is_relative_to(inside(self.root, name)) for name in WRITABLE):
            raise InvalidInput("path", f"{path!r} is not below a writable directory")

    async def start_files(self) -> ToyProcess:
        argv = files_argv("python3", str(self.root / "guest.pyz"))
        return await self.start(argv, id=f".files-{uuid.uuid4().hex}", timeout_ms=LIFETIME_MS, streams=STREAMS)


class ToyBackend:
    """Sandboxes that live as long as this object, below ``base``."""

    name = "toy"

    def __init__(self, base: Path) -> None:
        self._base = base
        self._held: dict[str, ToySandbox] = {}
        self._content = ContentCache(base / "content", self.survey)

    @property
    def nature(self) -> Nature:
        return KIND.nature

    async def probe(self) -> Probe:
        watched = "the server watches, and the program's init ends its tree"
        claims = dict.fromkeys(GUARANTEES, Protection(Level.MISSING, why="a plain process does not have it"))
        claims |= dict.fromkeys(("timeout", "output"), Protection(Level.SUPERVISED, by=watched))
        if os.geteuid() != 0:
            claims["privilege"] = Protection(
                Level.PROVIDER, by="the server was started without privilege; no_new_privs"
            )
        return Probe(self.name, True, claims, {"survival": "a sandbox ends with the server that made it"})

    async def create(self, spec: SandboxSpec, key: str) -> ToySandbox:
        probe = await self.probe()
        spec.refuse_names(self.name)
        Demand(spec.kernel_only, spec.allow_degraded).check(probe.protections)
        if spec.egress is not None:
            probe.demand("egress")
        if spec.forwarding:
            probe.demand("forwarding")
        if spec.owner is Owner.TASK:
            raise ProtectionMissing("a toy keeps no sandbox alive without its server")
        for sandbox in self._held.values():
            if sandbox.key == key:
                return sandbox
        async with self._content.placed(spec, key) as placed:
            sandbox = ToySandbox(key, spec, self._tree(placed), probe.enforced())
            self._held[sandbox.handle] = sandbox
            return sandbox

    def _tree(self, spec: SandboxSpec) -> Path:
        """The directories of a sandbox, and a virtual environment by which the plain interpreter finds packages."""
        links = {name: bound(mount.source) for mount in spec.mounts for name in (mount.target, *mount.aliases)}
        links["/python/bin/python3"] = PYTHON
        if spec.environment.packages is not None:
            links["/python/lib/python{}.{}/site-packages".format(*sys.version_info)] = bound(spec.environment.packages)
        for name, source in links.items():
            if not source.exists():
                raise SandboxFault(f"the source of {name} is missing")
        self._base.mkdir(parents=True, exist_ok=True)
        root = Path(tempfile.mkdtemp(prefix="toy-", dir=self._base)).resolve()
        for name in WRITABLE:
            inside(root, name).mkdir(parents=True)
        for name, source in links.items():
            inside(root, name).parent.mkdir(parents=True, exist_ok=True)
            inside(root, name).symlink_to(source)
        (root / "python" / "pyvenv.cfg").write_text(f"home = {PYTHON.parent}\ninclude-system-site-packages = false\n")
        (root / "guest.pyz").write_bytes(guest_bundle())
        return root

    async def attach(self, handle: str) -> ToySandbox:
        if handle not in self._held:
            raise SandboxGone(f"sandbox {handle} is unknown here")
        return self._held[handle]

    async def survey(self) -> Sequence[Held]:
        now = time.monotonic()
        return [Held(s.handle, s.key, s.spec.owner, now - s.began) for s in self._held.values()]

    async def destroy(self, handle: str) -> Usage:
        sandbox = self._held.pop(handle, None)
        if sandbox is None:
            return Usage()
        sandbox.gone = True
        sandbox.lost_files()
        async with sandbox.starting:
            used = [await process.discard() for process in sandbox.processes.values()]
        for tool in (["chmod", "-R", "-f", "u+rwx"], ["rm", "-rf"]):
            removing = await asyncio.create_subprocess_exec(*tool, "--", sandbox.root, stderr=subprocess.DEVNULL)
            await removing.wait()
        self._content.release(sandbox.key)
        return Usage(cpu_ms=sum(u.cpu_ms or 0 for u in used), wall_ms=(time.monotonic() - sandbox.began) * 1000)

    async def prepare(self, spec: SandboxSpec) -> Prepared | None:
        return None

    async def close(self) -> None:
        for handle in list(self._held):
            await self.destroy(handle)


KIND = registry.Kind(Nature(network=False), lambda place: ToyBackend(place.run_dir / "toy"))


@pytest.fixture(scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    backend = ToyBackend(tmp_path_factory.mktemp("toy"))
    yield Ground(backend, tmp_path_factory.mktemp("scratch"), variables=frozenset({ROOT}), keeps_bounding_set=True)
    await backend.close()


async def test_conformance(check: Check, ground: Ground) -> None:
    try:
        await check.run(ground)
    except NotApplicable as reason:
        pytest.skip(str(reason))


async def test_one_line_registers_it_and_policy_refuses_it_before_a_sandbox_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.BACKENDS, "toy", __name__)
    settings = load_settings(data_dir=tmp_path, policy={"isolation": "toy"})
    async with Runtime(settings=settings) as runtime:
        with pytest.raises(ProtectionMissing, match="host_files") as caught:
            await runtime.run_code("def main(args): return 1")
    assert {"host_files", "host_processes", "network", "memory"} <= set(caught.value.details["protections"])
    assert not (tmp_path / "run" / "toy").exists()


async def test_what_the_operator_accepts_runs_and_the_record_says_who_attests_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.BACKENDS, "toy", __name__)
    accepted = [name for name in GUARANTEES if name not in ("timeout", "output")]
    settings = load_settings(data_dir=tmp_path, policy={"isolation": "toy", "allow_degraded": accepted})
    async with Runtime(settings=settings) as runtime:
        run = await runtime.run_code("def main(args): return {'sum': sum(args['xs'])}", {"xs": [1, 2]})
        record = (await runtime.call("runs.show", {"run_id": run.run_id}))["run"]
    assert (run.output, record["isolation"]) == ({"sum": 3}, "toy")
    attestors = {name: told["attestor"] for name, told in record["guarantees"].items()}
    privilege = "missing" if os.geteuid() == 0 else "provider"
    assert attestors == dict.fromkeys(GUARANTEES, "missing") | {
        "privilege": privilege,
        "timeout": "supervised",
        "output": "supervised",
    }


async def test_a_guarantee_without_walls_is_held_to_the_checks_of_the_walls_that_would_bear_it(ground: Ground) -> None:
    """The suite does not believe a backend that attests what it does not have."""

    class Boasting(ToyBackend):
        async def probe(self) -> Probe:
            found = await super().probe()
            return replace(found, protections={name: Protection(Level.PROVIDER) for name in GUARANTEES})

    boasting = replace(ground, backend=Boasting(ground.scratch))
    failed = {v.check.id for v in await examine_all((c for c in CHECKS if c.id in BOASTS), boasting) if v.reason}
    assert failed == BOASTS


BOASTS = {
    "canaries-files",
    "canaries-listeners",
    "proc-processes",
    "special-files-sysfs",
}
