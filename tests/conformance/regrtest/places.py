"""One module of CPython's tests inside a native sandbox and outside of any, under conditions as equal as can be."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path

from skillyard.domain.errors import FileNotFound
from skillyard.domain.sandbox.spec import Argv, SandboxSpec, Stream
from skillyard.domain.work.limits import Limits
from skillyard.ports.sandbox import Backend, Process, Sandbox
from tests.conformance.regrtest.modules import IGNORED, RESOURCES
from tests.conformance.regrtest.results import Results, parse

LIMITS = Limits(memory_mb=4096, cpus=2.0, pids=1024, disk_mb=2048)
REPORT = "report.xml"
_SAID = 200_000


def _words(python: str, module: str, work: str, temporary: str) -> tuple[str, ...]:
    ignored = (word for pattern in IGNORED.get(module, ()) for word in ("-i", pattern))
    resources = ("-u", RESOURCES[module]) if module in RESOURCES else ()
    report = ("--junit-xml", f"{work}/{REPORT}", "--tempdir", temporary)
    return (python, "-s", "-m", "test", *report, *ignored, *resources, module)


async def inside(backend: Backend, module: str, timeout_s: float) -> Results:
    key = f"regrtest-{module}-{os.urandom(4).hex()}"
    sandbox = await backend.create(SandboxSpec(LIMITS), key)
    try:
        words = _words("python3", module, "/workspace", "/tmp")
        process = await sandbox.start(Argv(words), id="test", timeout_ms=int(timeout_s * 1000))
        ending = await process.wait()
        said = await _all(process, Stream.STDOUT) + await _all(process, Stream.STDERR) + f"\n{ending}"
        return parse(await _report(sandbox), said)
    finally:
        await backend.destroy(sandbox.handle)


async def outside(module: str, timeout_s: float) -> Results:
    """As root, under another id in a user namespace of its own: a test that finds itself root tests other things."""
    with tempfile.TemporaryDirectory() as work:
        python = getattr(sys, "_base_executable", sys.executable)
        words = _words(python, module, work, work)
        if os.geteuid() == 0:
            words = ("unshare", "--user", "--map-user=65532", "--map-group=65532", *words)
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"PATH": f"{Path(python).parent}:/usr/local/bin:/usr/bin:/bin", "HOME": work, "LANG": "C.UTF-8"},
            cwd=work,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(timeout_s):
                said, _ = await process.communicate()
        except TimeoutError:
            said = b"over the time limit"
        finally:
            _end_session(process.pid)
            await process.wait()
        report = Path(work, REPORT)
        return parse(report.read_bytes() if report.exists() else b"", said.decode(errors="replace")[-_SAID:])


def _end_session(leader: int) -> None:
    """What the tests left running in the process group that we started."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


async def _report(sandbox: Sandbox) -> bytes:
    try:
        return b"".join([piece async for piece in sandbox.read(f"/workspace/{REPORT}")])
    except FileNotFound:
        return b""


async def _all(process: Process, stream: Stream) -> str:
    return b"".join([piece async for piece in process.output(stream)])[-_SAID:].decode(errors="replace")
