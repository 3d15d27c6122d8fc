"""Faults: what a program does, and how its run must end.

``ends`` holds pairs of outcome and ``error.type`` that are right as root, where controllers count; ``supervised``
those that are right besides where nobody but the keeper's watch does. A pair of None is a run that completes: what
it tried is no harm.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Ends = tuple[tuple[str | None, str | None], ...]

MEMORY: Ends = (("memory", "MemoryLimitExceeded"),)
PROCESSES: Ends = (("processes", "ProcessLimitExceeded"),)
TIMEOUT: Ends = (("timeout", "TimeoutError"),)
DISK: Ends = (("disk", "DiskLimitExceeded"),)
OUTPUT: Ends = (("output", "OutputTooLarge"),)
MISUSE: Ends = (("output", "SandboxError"),)
DESCRIPTORS: Ends = (("exit", "OSError"),)
HARMLESS: Ends = ((None, None),)
NO_MOUNTS = {"landlock": "its one place to write is the working directory"}
NO_SENDING = {"landlock": "its filter refuses to send descriptors at all"}
ROOM = {"memory_mb": 512, "timeout_ms": 4_000}


@dataclass(frozen=True)
class Fault:
    """``body`` is that of ``main(args)``, after the prelude of the attacks. ``weak`` are isolations that this fault
    does not apply to, with the reason."""

    id: str
    body: str
    ends: Ends
    supervised: Ends = ()
    limits: dict[str, int] = field(default_factory=dict)
    weak: dict[str, str] = field(default_factory=dict)


_HOGS = """
def touch(mapped):
    for at in range(0, len(mapped), 4096):
        mapped[at] = 1
    return mapped

def pairs(count):
    made = [socket.socketpair() for _ in range(count)]
    for one, other in made:
        for end in (one, other):
            end.setblocking(False)
            try:
                while True:
                    end.send(bytes(65536))
            except BlockingIOError:
                pass
    return made

def stopped(status):
    if status:
        raise RuntimeError(f"my child ended with {status}")

def spread(count, work):
    for _ in range(count):
        if os.fork() == 0:
            held = work()
            time.sleep(30)
            os._exit(len(held))
    time.sleep(10)
"""

FAULTS = (
    Fault("memory: piece by piece", "held = [bytearray(1 << 20) for _ in range(1024)]", MEMORY),
    Fault("memory: in one piece", "held = bytearray(1 << 30)", MEMORY),
    Fault("memory: touched mappings", "held = [touch(mmap.mmap(-1, 8 << 20, flags=2)) for _ in range(64)]", MEMORY),
    Fault("memory: many processes", "spread(20, lambda: bytearray(24 << 20))", MEMORY),
    Fault("memory: a child that the kernel ends", """
        if os.fork() == 0:
            held = [touch(mmap.mmap(-1, 8 << 20)) for _ in range(64)]
            os._exit(0)
        stopped(os.wait()[1])
    """, MEMORY, supervised=(("exit", "RuntimeError"),)),
    Fault("memory: shared mappings", "held = [touch(mmap.mmap(-1, 8 << 20)) for _ in range(64)]", MEMORY),
    Fault("memory: memfd", """
        for n in range(64):
            fd = os.memfd_create(str(n))
            for _ in range(8):
                os.write(fd, bytes(1 << 20))
    """, MEMORY, supervised=(("exit", "OSError"),)),
    Fault("memory: full pipes, of which a user gets little", """
        held = [os.pipe() for _ in range(240)]
        for _, end in held:
            os.set_blocking(end, False)
            refusal(fcntl.fcntl, end, 1031, 1 << 20)
            os.write(end, bytes(1 << 20))
        return {"pipes": len(held)}
    """, HARMLESS),
    Fault("memory: socket buffers", "spread(20, lambda: pairs(240))", MEMORY, limits={"pids": 32}),
    Fault("memory: page tables", """
        libc.mmap.restype = ctypes.c_void_p
        size = 1 << 38
        at = libc.mmap(None, ctypes.c_size_t(size), 1, 0x4022, -1, ctypes.c_long(0))
        for page in range(0, size, 2 << 20):
            ctypes.string_at(at + page, 1)
    """, MEMORY),
    Fault("memory: a caught MemoryError is the program's own business", """
        try:
            held = bytearray(1 << 30)
        except MemoryError:
            return {"went": "on"}
    """, HARMLESS),
    Fault("memory: files of the host that are read", """
        seen = 0
        for place, _, names in os.walk("/usr/lib"):
            for name in names:
                try:
                    with open(os.path.join(place, name), "rb") as file:
                        seen += sum(map(len, iter(lambda: file.read(1 << 20), b"")))
                except OSError:
                    continue
                if seen > 200 << 20:
                    return {"seen": seen}
    """, HARMLESS),
    Fault("processes: a fork bomb", "while True:\n    os.fork()", PROCESSES, limits=ROOM),
    Fault("processes: a fork bomb that goes on", """
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        while True:
            refusal(os.fork)
    """, PROCESSES, supervised=TIMEOUT, limits=ROOM),
    Fault("processes: a fork bomb of a shell", """
        import subprocess
        subprocess.run(["sh", "-c", "f() { f | f & }; while :; do f; done"], stderr=subprocess.DEVNULL, check=True)
    """, PROCESSES, supervised=(*TIMEOUT, ("exit", "CalledProcessError")), limits=ROOM),
    Fault("processes: a thread bomb", """
        while True:
            threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
    """, PROCESSES, limits=ROOM),
    Fault("cpu: a loop that ignores every signal", """
        for number in set(range(1, 65)) - {9, 19, 32, 33}:
            signal.signal(number, signal.SIG_IGN)
        while True:
            pass
    """, TIMEOUT, limits={"timeout_ms": 500}),
    Fault("time: it sleeps", "time.sleep(60)", TIMEOUT, limits={"timeout_ms": 300}),
    Fault("time: it stops itself", "os.kill(os.getpid(), signal.SIGSTOP)", TIMEOUT, limits={"timeout_ms": 300}),
    Fault("time: it never answers", "os.close(3)\ntime.sleep(60)", TIMEOUT, limits={"timeout_ms": 300}),
    Fault("disk: bytes", "open('f', 'wb').write(bytes(64 << 20))", DISK),
    Fault("disk: bytes in /tmp", "open('/tmp/f', 'wb').write(bytes(64 << 20))", DISK, weak=NO_MOUNTS),
    Fault("disk: bytes in /dev/shm", "open('/dev/shm/f', 'wb').write(bytes(64 << 20))", DISK, weak=NO_MOUNTS),
    Fault("disk: names", "for n in range(100_000):\n    os.mkdir(str(n))", DISK),
    Fault("disk: the size of one file", "os.truncate(os.open('f', os.O_CREAT | os.O_RDWR), 1 << 40)", DISK),
    Fault("descriptors: open files", "held = [os.open('/dev/null', os.O_RDONLY) for _ in range(100_000)]", DESCRIPTORS),
    Fault("descriptors: in flight", """
        held = []
        while True:
            held.append(socket.socketpair())
            fds = array.array("i", [held[-1][0].fileno()] * 200)
            held[-1][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    """, DESCRIPTORS, weak=NO_SENDING),
    Fault("output: on stdout", "while True:\n    os.write(1, bytes(65536))", OUTPUT),
    Fault("output: on stderr", "while True:\n    os.write(2, bytes(65536))", OUTPUT),
    Fault("output: lines", "while True:\n    print('a line')", OUTPUT),
    Fault("result: too large", "return {'x': 'x' * (17 << 20)}", (("exit", "OutputTooLarge"),)),
    Fault("result: too deep", """
        deep = {}
        for _ in range(5000):
            deep = {"x": deep}
        return deep
    """, (("exit", "OutputNotSerializable"),)),
    Fault("blobs: too many", """
        from runtime import blobs
        for n in range(50):
            blobs.write_text("x")
    """, (("exit", "RuntimeError"),)),
    Fault("blobs: too large", """
        from runtime import blobs
        blobs.write_bytes(bytes(9 << 20))
    """, (("exit", "RuntimeError"),)),
    Fault("channel: it no longer reads", """
        socket.socket(fileno=os.dup(3)).shutdown(socket.SHUT_RD)
        return {"still": "here"}
    """, HARMLESS),
    Fault("channel: garbage", "os.write(3, os.urandom(1 << 16))\ntime.sleep(60)", MISUSE),
    Fault("channel: without end", "while True:\n    os.write(3, bytes(65536))", MISUSE),
    Fault("channel: it closes it", "os.close(3)\nreturn {}", (("exit", "SystemExit"),)),
    Fault("init: it tries to end it", """
        for target in (1, os.getppid(), -1):
            for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
                refusal(os.kill, target, number)
        return {"still": "here"}
    """, HARMLESS),
)  # fmt: skip
