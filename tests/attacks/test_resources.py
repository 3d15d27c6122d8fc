"""A run uses what it was given and no more, and is told which limit it met."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from skillyard import SyncRuntime
from tests.attacks.conftest import Attack

SMALL = {"memory_mb": 128, "disk_mb": 16, "pids": 48}


@pytest.fixture
def counted(runtime: SyncRuntime) -> Callable[[str], bool]:
    """Whether the kernel counts this resource for a whole sandbox here."""
    enforced = runtime.run_code("def main(args):\n    return {}", {})["enforced"]
    return lambda name: enforced.get(name) == "kernel"


MEMORY = {
    "one piece": "bytearray(1 << 30)",
    "piece by piece": "[bytearray(1 << 20) for _ in range(1024)]",
    "private mappings": "[touch(mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE)) for _ in range(64)]",
    "read-only first": "[made_writable(16 << 20) for _ in range(64)]",
    "private copies of a file": "copies_of_a_file()",
    "many processes": "[spread() for _ in range(20)] and time.sleep(10)",
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory(name: str, attack: Attack) -> None:
    run = attack(
        f"""
        def touch(mapped):
            for at in range(0, len(mapped), 4096):
                mapped[at] = 1
            return mapped

        def made_writable(size):
            libc.mmap.restype = ctypes.c_void_p
            at = libc.mmap(None, ctypes.c_size_t(size), 1, 0x22, -1, ctypes.c_long(0))
            if at == 2**64 - 1 or libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(size), 3):
                raise MemoryError
            ctypes.memset(at, 1, size)

        def copies_of_a_file():
            with open("/tmp/f", "wb") as file:
                file.truncate(8 << 20)
            held = []
            for _ in range(64):
                file = open("/tmp/f", "rb")
                held.append(touch(mmap.mmap(file.fileno(), 8 << 20, flags=mmap.MAP_PRIVATE, prot=3)))

        def spread():
            if os.fork() == 0:
                held = bytearray(64 << 20)
                time.sleep(30)
                os._exit(len(held))

        twin = bytearray(32 << 20)
        print("twin", len(twin) >> 20, flush=True)
        {MEMORY[name]}
        return {{}}
        """,
        **SMALL,
    )
    assert run.logs_preview.startswith("twin 32")
    assert run["status"] == "failed"
    assert run.error is not None
    assert run["outcome"] == "memory" or run.error["type"] in ("MemoryError", "OSError", "MemoryLimitExceeded"), dict(
        run
    )


SHARED = {
    "memfd": "[os.write(fd, block) for fd in [os.memfd_create(str(n)) for n in range(64)] for _ in range(16)]",
    "shared mappings that are let go": "[let_go() for _ in range(64)]",
}


@pytest.mark.parametrize("name", SHARED)
def test_memory_that_no_process_holds(name: str, attack: Attack, counted: Callable[[str], bool]) -> None:
    if not counted("memory"):
        pytest.skip("no memory controller: nobody counts what no process has mapped")
    run = attack(
        f"""
        block, kept = b"x" * (1 << 20), []

        def let_go():
            mapped = mmap.mmap(-1, 16 << 20)
            for at in range(0, len(mapped), 4096):
                mapped[at] = 1
            mapped.madvise(mmap.MADV_DONTNEED)
            kept.append(mapped)

        {SHARED[name]}
        return {{}}
        """,
        **SMALL,
    )
    assert run["status"] == "failed", dict(run)


QUEUES = {
    "TCP": """
        listening = socket.create_server(("127.0.0.1", 0))
        for _ in range(200):
            kept.append((socket.create_connection(listening.getsockname()), listening.accept()[0]))
            flood(kept[-1][0])
    """,
    "TCP, nobody accepts": """
        listening = socket.create_server(("127.0.0.1", 0), backlog=200)
        for _ in range(200):
            kept.append(socket.create_connection(listening.getsockname()))
            flood(kept[-1])
    """,
    "TCP, nobody accepts and nothing is sent": """
        listeners = [socket.create_server((f"127.0.0.{n}", 0), backlog=4096) for n in range(1, 40)]
        for turn in range(2000):
            for listening in listeners:
                socket.create_connection(listening.getsockname()).close()
    """,
    "UDP": """
        for _ in range(900):
            kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            kept[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
            kept[-1].bind(("127.0.0.1", 0))
            kept[-1].connect(kept[-1].getsockname())
            for _ in range(250):
                kept[-1].send(bytes(32000))
    """,
    "unix sockets": """
        for _ in range(400):
            kept.append(socket.socketpair())
            flood(kept[-1][0])
    """,
}


@pytest.mark.parametrize("kind", QUEUES)
def test_queues_of_sockets_are_memory(kind: str, attack: Attack) -> None:
    """Whoever the kernel charges for them, or nobody."""
    run = attack(
        f"""
        kept = []

        def flood(sock):
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
            while not refusal(sock.send, bytes(1 << 16)):
                pass

        {QUEUES[kind]}
        time.sleep(5)
        return "through"
        """,
        **SMALL,
    )
    assert run["outcome"] == "memory", dict(run)


DISK = {
    "a large file": "fill('/workspace/f')",
    "in /tmp": "fill('/tmp/f')",
    "in /dev/shm": "fill('/dev/shm/f')",
    "many files": "[fill(f'/tmp/{n}', 1) for n in range(64)]",
    "a reserved file": "os.posix_fallocate(os.open('/tmp/f', os.O_CREAT | os.O_RDWR), 0, 64 << 20)",
    "deleted files": "[hidden(n) for n in range(64)]",
    "names": "[os.mkdir(f'/tmp/{n}') for n in range(100000)]",
    "links": "(open('/tmp/a', 'w').close(), [os.link('/tmp/a', f'/tmp/{n}') for n in range(100000)])",
    "a sparse file": "os.truncate(os.open('/tmp/f', os.O_CREAT | os.O_RDWR), 1 << 40)",
    "three places at once": "[fill(f'{place}/f', 8) for place in ('/tmp', '/workspace', '/dev/shm')]",
}


@pytest.mark.parametrize("name", DISK)
def test_disk(name: str, attack: Attack) -> None:
    run = attack(
        f"""
        def fill(path, mib=64):
            with open(path, "wb", buffering=0) as file:
                for _ in range(mib):
                    assert file.write(b"x" * (1 << 20)) == 1 << 20

        held = []

        def hidden(n):
            held.append(os.open(f"/tmp/{{n}}", os.O_CREAT | os.O_RDWR))
            os.unlink(f"/tmp/{{n}}")
            assert os.write(held[-1], b"x" * (1 << 20)) == 1 << 20

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        fill("/tmp/twin", 4)
        os.unlink("/tmp/twin")
        print("twin", flush=True)
        {DISK[name]}
        return {{}}
        """,
        **SMALL,
    )
    assert run.logs_preview == "twin\n"
    assert run["status"] == "failed", dict(run)


def test_processors_cannot_be_taken_back(attack: Attack) -> None:
    run = attack("""
        everything = ctypes.create_string_buffer(b"\\xff" * 128, 128)
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        return {"affinity": sys_call(203, 0, 128, everything),
                "nicer": refusal(os.setpriority, os.PRIO_PROCESS, 0, -20),
                "real time": refusal(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1)),
                "twin": refusal(os.setpriority, os.PRIO_PROCESS, 0, nice + 1)}
    """)
    assert run.output == {"affinity": "EPERM", "nicer": "EACCES", "real time": "EPERM", "twin": ""}
