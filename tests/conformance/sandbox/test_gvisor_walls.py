"""What is particular to gVisor: the sentry and the gofer seen from inside and from the host, and their ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

import pytest

from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Outcome
from skillyard.ports.sandbox import Sandbox
from skillyard.sandbox.native.grounds.gvisor.backend import GvisorBackend
from skillyard.testing.sandbox_suite import Ground
from skillyard.testing.sandbox_suite.ground import eventually, look, processes, python, start, until, user_ids
from tests.conformance.sandbox import gvisor_ground

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.ordinary,
    pytest.mark.skipif(bool(gvisor_ground.absent()), reason=gvisor_ground.absent()),
]
WAIT = "import time\nprint('ready', flush=True)\ntime.sleep(600)"
BOUND_S = 20.0
SHOWN = (
    "/bin", "/sbin", "/lib", "/usr", "/etc", "/opt/skillyard", "/dev", "/proc", "/skills", "/blobs", "/show",
    sys.base_prefix, sys.base_exec_prefix, "/run/empty",
)  # fmt: skip
"""All that may be mounted for runsc or its gofer; what its sentry has is less."""
SPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")


@pytest.fixture(scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    async with gvisor_ground.standing(tmp_path_factory.mktemp("gvisor")) as ground:
        yield ground


@pytest.fixture(scope="module")
async def sandbox(ground: Ground) -> AsyncIterator[Sandbox]:
    """One for all that only look."""
    async with ground.sandbox() as sandbox:
        yield sandbox


async def test_the_kernel_is_not_the_host_s(sandbox: Sandbox) -> None:
    source = """
import ctypes, json, os
libc, buffer = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(1000)
print(json.dumps([os.uname().release, open('/proc/version').read(), libc.klogctl(3, buffer, 1000)]))
"""
    release, version, log = await look(sandbox, source)
    host = os.uname().release
    assert release != host
    assert host not in version
    assert log == -1, "nor is there a kernel's log to be read"


async def test_what_runsc_runs_from_is_out_of_sight(sandbox: Sandbox) -> None:
    source = """
import json, os
os.symlink('/proc/self/root/../../state', '/workspace/up')
ways = ['', '/proc/self/root', '/proc/self/cwd/..', '/workspace/../..', '/proc/thread-self/root', '/proc/1/root']
names = ['/rootfs', '/bundle', '/state', '/show', '/bundle/config.json', '/state/meta.json']
print(json.dumps([way + name for way in ways for name in names if os.path.lexists(way + name)]
    + [name for name in ('/workspace/up', '/proc/1/exe', '/proc/1/fd/0') if os.path.exists(name)]))
"""
    assert await look(sandbox, source) == []


async def test_no_device_is_made_or_opened(sandbox: Sandbox) -> None:
    """gVisor would let anybody make one, and opens those that it has drivers for."""
    source = """
import json, os, stat
opened = []
character, block = stat.S_IFCHR, stat.S_IFBLK
for kind, major, minor in ((character, 10, 229), (character, 10, 200), (character, 1, 3), (block, 8, 0)):
    try:
        os.mknod(f'/tmp/{major}-{minor}', kind | 0o666, os.makedev(major, minor))
        opened.append([major, minor])
    except OSError: pass
for name in ('fuse', 'net/tun', 'kvm', 'mem', 'kmsg', 'ptmx'):
    try: os.close(os.open('/dev/' + name, os.O_RDWR))
    except OSError: continue
    opened.append(name)
os.mkfifo('/tmp/pipe')
print(json.dumps(opened))
"""
    assert await look(sandbox, source) == []


async def test_the_sentry_stands_behind_walls_of_its_own(ground: Ground, sandbox: Sandbox) -> None:
    pids = await _pids(ground, sandbox)
    assert len(pids) >= 3, "runsc, its gofer and its sentry"
    for pid in pids:
        assert 0 not in user_ids(pid)
        assert _status(pid, "NoNewPrivs") == "1"
        for space in SPACES:
            assert _link(pid, f"ns/{space}") != _link("self", f"ns/{space}"), space
        devices = Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii").splitlines()[2:]
        assert all(line.strip().startswith("lo:") for line in devices), devices
    assert _status(_sentry(pids), "Seccomp") == "2"


async def test_neither_sentry_nor_gofer_has_the_host_s_files(ground: Ground, sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "canary").write_text("host", encoding="utf-8")
    for pid in await _pids(ground, sandbox):
        mounts = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        shown = {line.split()[4].removeprefix("/rootfs") or "/" for line in mounts}
        strange = {path for path in shown if path != "/" and not path.startswith(SHOWN)}
        assert not strange, (_name(pid), strange)
        root = Path(f"/proc/{pid}/root")
        for hidden in (tmp_path / "canary", Path("/etc/shadow"), Path("/var/log"), *ground.hidden):
            assert not (root / str(hidden).lstrip("/")).exists(), (pid, hidden)


async def test_two_sandboxes_have_two_of_everything(ground: Ground) -> None:
    async with ground.sandbox() as one, ground.sandbox() as two:
        pids = [set(await _pids(ground, each)) for each in (one, two)]
        spaces = [_link(_sentry([*each]), "ns/mnt") for each in pids]
    assert pids[0].isdisjoint(pids[1])
    assert spaces[0] != spaces[1]


async def test_destroy_leaves_nothing(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        await until(await start(sandbox, python(WAIT)), b"ready")
        assert await _pids(ground, sandbox)
        await ground.backend.destroy(sandbox.handle)
        assert await _pids(ground, sandbox) == []
        assert str(ground.hidden[0]) not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")
        await eventually(lambda: not _groups(sandbox.handle), "its control groups go too", BOUND_S)


@pytest.mark.parametrize("victim", ["runsc-sandbox", "runsc-gofer", "runsc"])
async def test_a_part_that_is_killed_ends_the_sandbox(ground: Ground, victim: str) -> None:
    """At the latest when its time is over: nobody waits for ever, and nothing is left."""
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python(WAIT), timeout_ms=8_000)
        await until(process, b"ready")
        [pid] = [pid for pid in await _pids(ground, sandbox) if _name(pid) == victim]
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(BOUND_S):
            ending = await process.wait()
        assert ending.outcome in (Outcome.LOST, Outcome.TIMEOUT, Outcome.EXIT), ending
        assert ending.outcome is not Outcome.EXIT or ending.code != 0
        await ground.backend.destroy(sandbox.handle)
        assert await _pids(ground, sandbox) == []
    async with ground.sandbox() as after:
        assert await look(after, "print(1)") == 1


async def test_a_hog_does_not_outgrow_its_limit_unseen(ground: Ground) -> None:
    """Memory that no process shows as its own is counted too: a file of memory, a shared mapping."""
    source = """
import mmap, os
held = []
while True:
    file = os.memfd_create('x')
    os.ftruncate(file, 8 << 20)
    held.append(mmap.mmap(file, 8 << 20))
    held[-1].write(b'x' * (8 << 20))
"""
    done = await ground.run(python(source), Limits(timeout_ms=20_000, memory_mb=64, disk_mb=8))
    assert done.ending.outcome is Outcome.MEMORY, done
    assert (done.ending.usage.peak_memory_bytes or 0) < 1 << 30, "long before it is the host's concern"


async def test_runs_end_with_a_server_that_was_killed(tmp_path: Path) -> None:
    complaints = tmp_path / "complaints"
    with complaints.open("w") as said, _server(tmp_path / "server", said) as server:
        handle = await _line(server)
        assert handle, complaints.read_text()
        assert processes(handle)
        server.kill()
        await eventually(lambda: not processes(handle), "a killed server's runs end", BOUND_S)
    await eventually(lambda: not processes(str(tmp_path)), "and its keeper, with what it held ready", BOUND_S)


async def test_a_keeper_that_was_killed_takes_all_with_it(tmp_path: Path) -> None:
    async with gvisor_ground.standing(tmp_path) as ground:
        async with ground.sandbox() as sandbox:
            process = await start(sandbox, python(WAIT))
            await until(process, b"ready")
            for pid in processes(str(tmp_path / "run")):
                os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(BOUND_S):
                assert (await process.wait()).outcome is Outcome.LOST
            await eventually(lambda: not processes(sandbox.handle), "the kernel ends what it held", BOUND_S)
        async with ground.sandbox() as after:
            assert await look(after, "print(1)") == 1
    await eventually(lambda: not _groups(sandbox.handle), "the next keeper removes its groups", BOUND_S)


async def test_a_runsc_that_is_none_is_explained(tmp_path: Path) -> None:
    for path, words in ((str(tmp_path / "none"), "there is no"), ("/bin/true", "does not answer as a runsc")):
        backend = GvisorBackend(tmp_path / "run", gvisor_ground.named(path))
        probe = await backend.probe()
        await backend.close()
        assert not probe.ready
        assert words in probe.facts["why"]
        assert "apt install runsc" in probe.protections["seccomp"].mend


def _server(base: Path, said: IO[str]) -> subprocess.Popen[str]:
    """Another process with a backend of its own, which prints the handle of a sandbox that runs and waits."""
    base.mkdir()
    source = f"""
import asyncio, sys
from pathlib import Path
from skillyard.testing.sandbox_suite.ground import python, start, until
from tests.conformance.sandbox import gvisor_ground
async def main():
    async with gvisor_ground.standing(Path({str(base)!r})) as ground, ground.sandbox() as sandbox:
        await until(await start(sandbox, python({WAIT!r})), b"ready")
        print(sandbox.handle, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": root}
    command = [sys.executable, "-c", source]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment)


async def _line(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    async with asyncio.timeout(60):
        return (await asyncio.to_thread(server.stdout.readline)).strip()


async def _pids(ground: Ground, sandbox: Sandbox) -> list[int]:
    assert ground.witness is not None
    return await ground.witness(sandbox.handle)


def _sentry(pids: list[int]) -> int:
    return next(pid for pid in pids if _name(pid) == "runsc-sandbox")


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()


def _status(pid: int, key: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{key}:"))


def _link(pid: int | str, name: str) -> str:
    return str(Path(f"/proc/{pid}/{name}").readlink())


def _groups(handle: str) -> list[Path]:
    """Others of the host's come and go while we look."""
    places = (Path(directory) for directory, _, _ in os.walk("/sys/fs/cgroup"))
    return [place for place in places if place.name == handle and place.parent.name.startswith("skillyard-")]
