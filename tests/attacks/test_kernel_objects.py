"""What the kernel counts by user, or for nobody, runs out for the sandbox that takes it and for no one else."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from skillyard import SyncRuntime
from skillyard.config.settings import load_settings
from skillyard.domain.errors import ProtectionMissing
from skillyard.sandbox.native.keeper.account import Used
from skillyard.sandbox.native.keeper.request import Lease, Shape
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.watch import memory
from skillyard.sandbox.native.keeper.watch.kernel_objects import Objects, Seen
from tests.attacks.programs import program

TAKE = """
    def take(files, each):
        for _ in range(files):
            number = tempfile.mkstemp(dir=".")[0]
            for at in range(0, 2 * each, 2):
                fcntl.lockf(number, fcntl.LOCK_EX, 1, at)

"""
OUT_OF_SIGHT = {
    "the first thread has ended": """
        EXIT = 60 if os.uname().machine == "x86_64" else 93
        if os.fork() == 0:
            threading.Thread(target=lambda: (take(40, 500), time.sleep(20))).start()
            libc.syscall(EXIT, 0)
    """,
    "a thread has descriptors of its own": """
        def alone():
            told.append(sys_call(436, 1000000, 1000001, 2))
            take(40, 500)
            time.sleep(20)
        told = []
        threading.Thread(target=alone, daemon=True).start()
        while not told:
            time.sleep(0.01)
    """,
    "short-lived children work for one that sleeps": """
        CLONE = 56 if os.uname().machine == "x86_64" else 220
        files = [tempfile.mkstemp(dir=".")[0] for _ in range(500)]
        time.sleep(3)  # it was looked at, and has many descriptors
        for turn in range(20):
            pid = sys_call(CLONE, 0x400 | 17, 0, 0, 0, 0)
            if isinstance(pid, str):
                take(40, 3000)  # by itself, in sight
                break
            if pid == 0:
                for number in files:
                    for at in range(10 * turn, 10 * turn + 10, 2):
                        fcntl.lockf(number, fcntl.LOCK_EX, 1, at)
                os._exit(0)
            os.waitpid(pid, 0)
    """,
    "many processes work a little each": """
        (ready, go), (done, tell) = os.pipe(), os.pipe()
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        for _ in range(12):
            if os.fork() == 0:
                os.close(go)
                files = [tempfile.mkstemp(dir=".")[0] for _ in range(min(600, most - 50))]
                os.read(ready, 1)
                began, at = time.process_time(), 0
                while time.process_time() - began < 0.18:
                    for number in files:
                        fcntl.lockf(number, fcntl.LOCK_EX, 1, at)
                    at += 2
                os.write(tell, b"x")
                time.sleep(20)
                os._exit(0)
        time.sleep(4)  # each was looked at, and has many descriptors
        os.close(go)
        for _ in range(12):
            os.read(done, 1)
    """,
}
FEW = """
    one, two = socket.socketpair()
    epoll = select.epoll()
    epoll.register(one)
    fd = os.open("one", os.O_CREAT | os.O_RDWR)
    for at in range(0, 1000, 2):
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, at)
    end = time.monotonic() + 3
    while time.process_time() < 0.5 and time.monotonic() < end:
        pass
    return "through"
"""


@pytest.fixture(scope="module", params=["native", "landlock"])
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncRuntime]:
    settings = load_settings(data_dir=tmp_path_factory.mktemp("objects"), policy={"isolation": request.param})
    with SyncRuntime(settings=settings) as runtime:
        try:
            runtime.run_code("def main(args): pass")
        except ProtectionMissing as missing:
            pytest.skip(str(missing))
        yield runtime


@pytest.mark.parametrize("how", OUT_OF_SIGHT)
def test_locks_cannot_be_taken_out_of_sight(how: str, runtime: SyncRuntime) -> None:
    """The keeper sees those of 40 files with 500 locks each, or they could not be taken."""
    taking = f"{_body(TAKE)}\n{_body(OUT_OF_SIGHT[how])}"
    source = program(f"import tempfile\n{taking}\ntime.sleep(4)\nreturn 'through'")
    run = runtime.run_code(source, limits={"timeout_ms": 30_000})
    assert (run["outcome"], "locks of files" in str(run.error)) == ("memory", True), dict(run)


def test_a_few_are_as_good_as_none(runtime: SyncRuntime) -> None:
    run = runtime.run_code(program(f"import select\n{_body(FEW)}"), limits={"timeout_ms": 30_000})
    assert run["output"] == {"result": "through"}, dict(run)


MAPPINGS = """
    libc.mmap.restype = ctypes.c_void_p
    for _ in range(6):
        if os.fork() == 0:
            at = libc.mmap(None, ctypes.c_size_t(60_000 << 12), 0, 0x22, -1, ctypes.c_long(0))
            for page in range(0, 60_000, 2):
                libc.mprotect(ctypes.c_void_p(at + (page << 12)), ctypes.c_size_t(4096), 1)
            time.sleep(20)
            os._exit(0)
    time.sleep(10)
    return "through"
"""


def test_mappings_are_memory(runtime: SyncRuntime) -> None:
    """Of the kernel's, which no process shows as its own."""
    if runtime.run_code("def main(args): pass")["enforced"]["memory"] == "kernel":
        pytest.skip("a controller counts them")
    run = runtime.run_code(program(_body(MAPPINGS)), limits={"timeout_ms": 30_000, "memory_mb": 64})
    assert run["outcome"] == "memory", dict(run)
    assert "mappings" in str(run.error), run.error


MANY = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
at = libc.mmap(None, ctypes.c_size_t(60_000 << 12), 0, 0x22, -1, ctypes.c_long(0))
for page in range(0, 60_000, 2):
    libc.mprotect(ctypes.c_void_p(at + (page << 12)), ctypes.c_size_t(4096), 1)
print("ready", flush=True)
sys.stdin.read()
"""


class Lent:
    """As much of a sandbox as is looked at."""

    forced = None
    shape = Shape("", "", 512, 1.0, 64, 64)


def test_looking_at_one_sandbox_keeps_the_keeper_from_no_other() -> None:
    """A list of mappings takes tens of milliseconds: not those of all its processes at once."""
    command = [sys.executable, "-c", MANY]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(10)]
    try:
        assert [child.stdout.readline() for child in children if child.stdout] == [b"ready\n"] * 10
        objects, box = Objects(), cast(Sandbox, Lent())
        took = []
        for _ in range(11):
            began = time.thread_time()
            objects.check(box, [f"/proc/{child.pid}" for child in children], counted=False)
            took.append(time.thread_time() - began)
            objects.hurry()
        assert statistics.median(took) < 0.12, took
        assert sum(took) > 0.12, "each had its turn"
    finally:
        for child in children:
            child.communicate()


ENDED = """
import os, socket, sys
from skillyard.sandbox.native.inside import walls
from skillyard.sandbox.native.linux import kernel
kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNET)
walls._loopback_up()
listening = socket.create_server(("127.0.0.1", 0))
for _ in range(100):
    one, (two, _) = socket.create_connection(listening.getsockname()), listening.accept()
    one.close()
    two.close()
print("ready", flush=True)
sys.stdin.read()
"""


def test_connections_that_ended_are_counted() -> None:
    """They are remembered for a minute, and are nobody's."""
    child = subprocess.Popen([sys.executable, "-c", ENDED], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    held = memory.uncharged(child.pid)
    child.communicate()
    assert held == 100 * 320


class Counted:
    """A control group that counts memory, and how often it was looked at."""

    looks = 0

    def counts_memory(self) -> bool:
        return True

    def leaders(self) -> list[int]:
        return []

    def own_memory(self) -> int:
        self.looks += 1
        return 600 << 20


@pytest.mark.parametrize(
    ("age_s", "hurried", "looks"),
    [(-60.0, False, 0), (0.0, True, 1), (1.0, False, 1)],
    ids=["fresh", "hurried", "older"],
)
def test_a_fresh_sandbox_whose_memory_is_bounded_is_left_alone(age_s: float, hurried: bool, looks: int) -> None:
    """Unless an object ran out that is counted by user: it may be the one that took it."""
    box, objects, group, ended = Lent(), Objects(), Counted(), list[str]()
    lease = Lease("key", "run", single=True, timeout_ms=1000, at=time.monotonic() - age_s)
    usage = SimpleNamespace(meter=SimpleNamespace(used=Used()))
    vars(box).update(
        group=group, lease=lease, pid=os.getpid(), account=usage, end_for=lambda *why: ended.append(why[0])
    )
    if hurried:
        objects.hurry()
    memory.check(cast(Sandbox, box), objects)
    assert group.looks == looks
    assert ended == ["memory"] * looks


def _body(text: str) -> str:
    lines = text.strip("\n").splitlines()
    margin = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[margin:] for line in lines)


def test_a_process_with_many_watches_is_looked_at_sooner() -> None:
    """One that took many between two costly looks must not keep them for minutes."""
    now = time.monotonic()
    assert Seen(watches=5000, cost_s=0.1, at=now - 5).due(now, 0.0)
    assert not Seen(watches=10, cost_s=0.1, at=now - 5).due(now, 0.0)
