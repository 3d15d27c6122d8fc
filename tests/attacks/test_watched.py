"""What no controller counts is looked at from outside: nothing hides from the look, at any level."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from skillyard import SyncRuntime
from skillyard.client.run import Run
from skillyard.config.settings import load_settings
from skillyard.domain.errors import ProtectionMissing
from tests.attacks.programs import PRELUDE

LIBRARY = """
import subprocess

def beside(source):
    '''A process that goes on with ``source`` when its first thread has ended.'''
    whole = THREADS.format(source=source.strip().replace(chr(10), chr(10) + ' ' * 8))
    return subprocess.Popen([sys.executable, '-I', '-S', '-c', whole], stdout=subprocess.PIPE)

THREADS = '''
import ctypes, os, threading, time
def main():
    time.sleep(0.3)
    try:
        {source}
    finally:
        os._exit(0)
threading.Thread(target=main).start()
ctypes.CDLL(None).syscall(60, 0)
'''
REMOVED = '''
held = []
for _ in range(48):
    held.append(os.open('file', os.O_CREAT | os.O_RDWR))
    os.write(held[-1], bytes(1 << 20))
    os.unlink('file')
    time.sleep(0.04)
os.write(1, b'through')
'''
"""

MEMORY = {
    "processes whose first thread ended": """
        eater = "held = bytearray(48 << 20)\\nfor i in range(0, 48 << 20, 4096): held[i] = 1\\ntime.sleep(5)"
        children = [beside(eater) for _ in range(5)]
        if any([child.wait() for child in children]):
            raise ChildProcessError('one was ended')  # on a busy host the kernel does so before the watch looks
        return 'through'
    """,
    "page tables": """
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        size = 96 << 30
        start = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, -1, 0)
        for at in range(start, start + size, 2 << 20):
            ctypes.c_char.from_address(at).value
        time.sleep(3)
        return 'through'
    """,
}
DISK = {
    "removed, held by one that cannot be traced": """
        libc.prctl(4, 0, 0, 0, 0)
        exec(REMOVED)
        return 'through'
    """,
    "in a directory that is never where it was listed": """
        for number in range(3000):
            os.close(os.open(f'name{number}', os.O_CREAT | os.O_WRONLY))
        names, number = [f'moved{number}' for number in range(8)], 8
        inner = []
        for name in names:
            os.mkdir(name)
            inner.append(os.open(name, os.O_RDONLY))
        if os.fork() == 0:
            while True:
                for at, name in enumerate(names):
                    number += 7919
                    names[at] = f'moved{number % 1000003}'
                    os.rename(name, names[at])
                time.sleep(0.001)
        for number in range(64):
            fd = os.open(f'file{number}', os.O_CREAT | os.O_WRONLY, dir_fd=inner[number % 8])
            os.write(fd, bytes(1 << 20))
            os.close(fd)
            time.sleep(0.1)
        return 'through'
    """,
    "moved from one directory to the next": """
        for name in ('a', 'b', 'a/held'):
            os.mkdir(name)
        inner = os.open('a/held', os.O_RDONLY)
        if os.fork() == 0:
            while True:
                os.rename('a/held', 'b/held')
                os.rename('b/held', 'a/held')
        for number in range(64):
            fd = os.open(f'file{number}', os.O_CREAT | os.O_WRONLY, dir_fd=inner)
            os.write(fd, bytes(1 << 20))
            os.close(fd)
            time.sleep(0.1)
        return 'through'
    """,
    "removed, held by one whose first thread ended": """
        return beside(REMOVED).stdout.read().decode()
    """,
}


@pytest.fixture(scope="module", params=["native", "landlock"])
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncRuntime]:
    settings = load_settings(data_dir=tmp_path_factory.mktemp("watched"), policy={"isolation": request.param})
    with SyncRuntime(settings=settings) as runtime:
        try:
            runtime.run_code("def main(args): pass")
        except ProtectionMissing as missing:
            pytest.skip(str(missing))
        yield runtime


@pytest.fixture
def network(request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["runtime"] != "native":
        pytest.skip("programs have no sockets at this level")


def run(runtime: SyncRuntime, body: str, **limits: Any) -> Run:
    lines = body.strip("\n").splitlines()
    margin = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    source = "\n".join("    " + line[margin:] for line in lines)
    return runtime.run_code(f"{PRELUDE}{LIBRARY}\ndef main(args):\n{source}\n", limits={"timeout_ms": 30_000, **limits})


@pytest.mark.parametrize("how", MEMORY)
def test_memory(how: str, runtime: SyncRuntime) -> None:
    ended = run(runtime, MEMORY[how], memory_mb=128, disk_mb=16)
    assert ended["outcome"] == "memory", dict(ended)


CONNECTED = """
    import socket
    family, address = {"IPv4": (socket.AF_INET, "127.0.0.1"), "IPv6": (socket.AF_INET6, "::1")}[VERSION]
    listening = socket.socket(family)
    listening.bind((address, 0))
    listening.listen(512)
    held = []
    for _ in range(100):
        held += [socket.create_connection(listening.getsockname()[:2]), listening.accept()[0]]
        if FULL:
            held[-2].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
            held[-2].setblocking(False)
            try:
                while True:
                    held[-2].send(bytes(32000))
            except BlockingIOError:
                pass
    time.sleep(1)
    return 'through'
"""


@pytest.mark.parametrize("version", ["IPv4", "IPv6"])
@pytest.mark.parametrize(("full", "outcome"), [("no", "exit"), ("yes", "memory")])
def test_connections_count_by_what_waits_in_them(
    version: str, full: str, outcome: str, runtime: SyncRuntime, network: None
) -> None:
    body = CONNECTED.replace("VERSION", repr(version)).replace("FULL", repr(full == "yes"))
    ended = run(runtime, body, memory_mb=128, disk_mb=16)
    assert ended["outcome"] == outcome, dict(ended)


@pytest.mark.parametrize("how", DISK)
def test_files(how: str, runtime: SyncRuntime) -> None:
    """The file system refuses, or the watch ends the run."""
    ended = run(runtime, DISK[how], disk_mb=16)
    assert "through" not in str(ended.get("output")), dict(ended)


def test_space_cannot_be_reserved_beyond_the_limit(runtime: SyncRuntime) -> None:
    """One call that takes what is there is done before anybody looks; fallocate(2), ioctl_xfs_preallocate."""
    ended = run(
        runtime,
        """
        fd = os.open('file', os.O_CREAT | os.O_RDWR)
        sys_call(285, fd, 1, 0, 256 << 20)
        for command in (0x40305828, 0x4030582A, 0x40305839):
            refusal(fcntl.ioctl, fd, command, struct.pack('hhqqi4i', 0, 0, 0, 256 << 20, 0, 0, 0, 0, 0))
        twin = refusal(os.posix_fallocate, fd, 0, 1 << 20)
        return {'held': os.fstat(fd).st_blocks * 512, 'twin': twin}
        """,
        disk_mb=16,
    )
    assert ended.output["twin"] == ""
    assert 1 << 20 <= ended.output["held"] <= 16 << 20, dict(ended)


def test_others_of_the_same_user_keep_their_priority(runtime: SyncRuntime) -> None:
    """setpriority(2) and ioprio_set(2) name a user too, who may be the server's."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    ended = run(
        runtime,
        """
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        for who in (0, os.getuid()):
            refusal(os.setpriority, os.PRIO_USER, who, nice + 1)
            sys_call(251, 3, who, 3 << 13)
        return {'twin': refusal(os.setpriority, os.PRIO_PROCESS, 0, min(19, nice + 2))}
        """,
    )
    assert ended.output == {"twin": ""}
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_a_program_that_makes_and_removes_files_goes_on(runtime: SyncRuntime) -> None:
    """It may be held for a moment to be counted, and finds nothing changed; what it stopped itself stays so."""
    ended = run(
        runtime,
        """
        sleeper = subprocess.Popen(['sleep', '60'])
        os.kill(sleeper.pid, signal.SIGSTOP)
        end, count = time.monotonic() + 2, 0
        while time.monotonic() < end:
            names = [f'file{number}' for number in range(200)]
            for name in names:
                os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
            for name in names:
                os.unlink(name)
            count += 1
        done, status = os.waitpid(sleeper.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        return {'worked': count > 0, 'stopped': os.WIFSTOPPED(status)}
        """,
    )
    assert ended.output == {"worked": True, "stopped": True}
