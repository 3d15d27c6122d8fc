"""Attacks that exhaust memory by processes, files, sockets and objects of the kernel."""

from __future__ import annotations

from skillyard.domain.sandbox.guarantees import Level
from skillyard.testing.attacks.attack import Family, Judgement, Place, Verdict, broken, judged, not_applicable

LIMIT_MB, ASKED_MB = 64, 320
"""The limit of a run, and what it tries to hold: far from the limit, and no danger to the host."""

_MEMORY_ENDS = ("memory", "MemoryLimitExceeded", "MemoryError", "OSError", "disk", "DiskLimitExceeded",
                "BrokenPipeError", "PermissionError", "FileNotFoundError")  # fmt: skip
MEMORY = Family("memory", walls=("memory",), invariants=(7,))

_BODY = """
MIB = 1 << 20
asked = args["asked"] + (args.get("kernel", 0) if OWN_KERNEL else 0)
block = os.urandom(4096) * 256
held = []
def touch(mapped):
    for at in range(0, len(mapped), 4096):
        mapped[at] = 1
    return mapped
armed()
try:
    total = hold()
except (MemoryError, OSError):
    total = 0
tried.append("hold")
must_hold(f"held {total} MiB with a limit of {args['limit']}", total < asked)
"""


def _holds(name: str, tries: str, define: str, *, walls: tuple[str, ...] = ("memory",), disk_mb: int = 32) -> None:
    MEMORY.program(
        name,
        tries,
        define.strip("\n") + "\n" + _BODY,
        walls=walls,
        ends=_MEMORY_ENDS,
        limits={"memory_mb": LIMIT_MB, "disk_mb": disk_mb, "pids": 64},
        args={"limit": LIMIT_MB, "asked": ASKED_MB},
        alone=True,
    )


_holds(
    "anonymous",
    "Allocate memory piece by piece until far above the limit.",
    """
def hold():
    for n in range(asked // 8):
        held.append(bytearray(8 * MIB))
        touch(held[-1])
    return 8 * len(held)
""",
)
_holds(
    "private-mappings",
    "Map private memory read-only first, make it writable later, and touch it all.",
    """
def hold():
    size = 16 * MIB
    for n in range(asked // 16):
        at = libc.mmap(None, ctypes.c_size_t(size), 1, 0x22, -1, ctypes.c_long(0))
        if at == 2**64 - 1 or libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(size), 3):
            raise MemoryError
        ctypes.memset(at, 1, size)
        held.append(at)
    return 16 * len(held)
""",
)
_holds(
    "copies-of-files",
    "Map one small file privately many times and write to each copy.",
    """
def hold():
    with open("/tmp/f", "wb") as file:
        file.truncate(8 * MIB)
    for n in range(asked // 8):
        with open("/tmp/f", "rb") as file:
            held.append(touch(mmap.mmap(file.fileno(), 8 * MIB, flags=mmap.MAP_PRIVATE, prot=3)))
    return 8 * len(held)
""",
)
_holds(
    "many-processes",
    "Spread memory over many processes, each below the limit of one.",
    """
def hold():
    reading, writing = os.pipe()
    children = []
    for n in range(asked // 16):
        child = os.fork()
        if child == 0:
            own = touch(bytearray(16 * MIB))
            os.write(writing, b"x")
            time.sleep(20)
            os._exit(len(own) & 1)
        children.append(child)
    os.close(writing)
    os.set_blocking(reading, False)
    count, until = 0, time.monotonic() + 6
    while count < len(children) and time.monotonic() < until:
        try:
            count += len(os.read(reading, 64))
        except BlockingIOError:
            time.sleep(0.02)
    alive = sum(os.waitpid(child, os.WNOHANG)[0] == 0 for child in children)
    for child in children:
        try:
            os.kill(child, 9)
        except OSError:
            pass
    return 16 * min(count, alive)
""",
)
_holds(
    "memfd",
    "Fill files that live in memory and have no name.",
    """
def hold():
    for n in range(asked // 16):
        fd = os.memfd_create(str(n))
        for _ in range(16):
            os.write(fd, block)
        held.append(fd)
    return 16 * len(held)
""",
)
_holds(
    "let-go",
    "Fill shared mappings and let the pages go, so that no process shows them.",
    """
def hold():
    for n in range(asked // 16):
        mapped = touch(mmap.mmap(-1, 16 * MIB))
        mapped.madvise(mmap.MADV_DONTNEED)
        held.append(mapped)
    return 16 * len(held)
""",
)
_holds(
    "zero-device",
    "Fill shared mappings of /dev/zero and let the pages go.",
    """
def hold():
    for n in range(asked // 16):
        fd = os.open("/dev/zero", os.O_RDWR)
        mapped = touch(mmap.mmap(fd, 16 * MIB))
        mapped.madvise(mmap.MADV_DONTNEED)
        os.close(fd)
        held.append(mapped)
    return 16 * len(held)
""",
)
_holds(
    "tmpfs",
    "Use files in /dev/shm as memory, far above both limits together.",
    """
def hold():
    for n in range(asked):
        with open(f"/dev/shm/{n}", "wb", buffering=0) as file:
            if file.write(block) != MIB:
                raise OSError
        held.append(n)
    return len(held)
""",
    walls=("memory", "disk"),
)
_holds(
    "locked",
    "Lock memory so that it can never be taken back.",
    """
def hold():
    mapped = mmap.mmap(-1, 32 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    at = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    if libc.mlock(ctypes.c_void_p(at), ctypes.c_size_t(32 * MIB)) == 0 or libc.mlockall(3) == 0:
        return asked
    return 0
""",
    walls=("memory", "no_capabilities"),
)
_KERNEL_BODY = _BODY.replace(
    "armed()",
    """
def hold():
    total = 0
    for n in range(300):
        one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        one.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            one.setsockopt(socket.SOL_SOCKET, option, 8 * MIB)
        held.append((one, two))
        try:
            while True:
                total += one.send(block)
        except BlockingIOError:
            pass
        reading, writing = os.pipe2(os.O_NONBLOCK)
        held.append((reading, writing))
        try:
            import fcntl
            fcntl.fcntl(writing, 1031, MIB)
        except OSError:
            pass
        try:
            while True:
                total += os.write(writing, block)
        except BlockingIOError:
            pass
        if total >= asked * MIB:
            break
    return total // MIB
armed()
""",
)


async def _kernel_memory(place: Place) -> Judgement:
    """Where nobody but a watch counts, SECURITY.md says so: all may be taken between two looks. A kernel of the
    sandbox's own is given memory for itself besides."""
    limits = {"memory_mb": LIMIT_MB, "disk_mb": 16, "pids": 64}
    args = {"limit": LIMIT_MB, "asked": 160, "kernel": 320}
    judgement = judged(await place.attack(_KERNEL_BODY, args, **limits), _MEMORY_ENDS)
    if judgement.verdict is Verdict.ESCAPED and place.enforced.get("memory") == Level.SUPERVISED:
        return not_applicable(f"memory is only watched here, and may be taken between two looks: {judgement.why}")
    return judgement


MEMORY.steps(
    "kernel-memory", "Fill socket buffers and pipes, which belong to the kernel and to no process.", _kernel_memory,
    alone=True,
)  # fmt: skip

OBJECTS = Family("objects", walls=("memory",), invariants=(7,))

_TAKE_BODY = """
held = []
armed()
try:
    count = take()
except (MemoryError, OSError) as error:
    count = 0
    if not OWN_KERNEL:
        wrong.append(f"refused instead of ended: {type(error).__name__}: {error}")
tried.append("take")
until = time.monotonic() + 5
while time.monotonic() < until:
    time.sleep(0.1)
must_hold(f"kept {count} {args['what']}", count < args["asked"])
"""


def _takes(
    name: str,
    tries: str,
    what: str,
    asked: int,
    define: str,
    *,
    told: str = "",
    rests_on: tuple[str, ...] = (),
) -> None:
    """Adds a run that must end as memory; its reason names ``told``. A kernel of the sandbox's own may refuse."""
    body = "import fcntl, select\n" + define.strip("\n") + "\n" + _TAKE_BODY

    async def steps(place: Place) -> Judgement:
        limits = {"memory_mb": LIMIT_MB, "disk_mb": 16, "pids": 64}
        ran = await place.attack(body, {"what": what, "asked": asked}, **limits)
        judgement = judged(ran, ("memory",))
        if judgement.verdict is not Verdict.CONTAINED:
            return judgement
        if ran.ok:
            return judgement if ran.output["own_kernel"] else broken("it came to its own end, within its memory")
        return judgement if told in ran.why else broken(f"its reason does not name {told}: {ran.why}")

    OBJECTS.steps(name, tries, steps, alone=True, rests_on=rests_on)


_takes(
    "locks",
    "Lock every second byte of many files, which is memory that the kernel counts for nobody.",
    "locks",
    20_000,
    """
def take():
    if OWN_KERNEL:
        elsewhere("locks are its own kernel's memory there, none is the host's")
        return 0
    for number in range(40):
        held.append(os.open(f"locked-{number}", os.O_CREAT | os.O_RDWR))
        for at in range(0, 1000, 2):
            fcntl.lockf(held[-1], fcntl.LOCK_EX, 1, at)
    return 20_000
""",
    told="locks of files",
)
_takes(
    "watches",
    "Register the same few pipes under many numbers in many epoll instances: the user's watches are used up.",
    "watches",
    200_000,
    """
def take():
    if OWN_KERNEL:
        elsewhere("watches are its own kernel's there, none is the host's")
        return 0
    import resource
    pipes = [os.pipe()[0] for _ in range(100)]
    for _ in range(40):
        held.append(select.epoll())
    count, top = 0, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 960)
    for number in range(top - 60, top):
        for pipe in pipes:
            os.dup2(pipe, number)
            for epoll in held:
                epoll.register(number)
                count += 1
    return count
""",
    told="watches of epoll",
)
_takes(
    "in-flight",
    "Leave descriptors in messages that nobody reads: the kernel counts them by user and refuses the user's others.",
    "descriptors in flight",
    600,
    """
def take():
    if OWN_KERNEL:
        elsewhere("what is in flight is its own kernel's there, none is the host's")
        return 0
    for _ in range(3):
        held.append(socket.socketpair())
        socket.send_fds(held[-1][0], [b"x"], [0] * 200)
    return 600
""",
    told="descriptors in flight",
    rests_on=("net_namespace",),
)
_FLOOD = """
def flood(sock):
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
    sent = 0
    try:
        while True:
            sent += sock.send(block)
    except (BlockingIOError, ConnectionRefusedError):
        return sent
block = bytes(32000)
def take():
    total = 0
    for _ in range(400):
        total += one()
        if total >> 20 >= args["asked"]:
            break
    return total >> 20
"""


def _queues(name: str, tries: str, define: str, asked_mb: int = ASKED_MB) -> None:
    _takes(name, tries, "MiB in queues", asked_mb, define + _FLOOD, rests_on=("net_namespace",))


_queues(
    "tcp",
    "Fill TCP connections that nobody reads from.",
    """
listening = socket.create_server(("127.0.0.1", 0))
def one():
    held.append((socket.create_connection(listening.getsockname()), listening.accept()[0]))
    return flood(held[-1][0])
""",
)
_queues(
    "tcp-unaccepted",
    "Fill TCP connections that nobody accepts: they are charged to a group when they are accepted.",
    """
listening = socket.create_server(("127.0.0.1", 0), backlog=512)
def one():
    held.append(socket.create_connection(listening.getsockname()))
    return flood(held[-1])
""",
)
_queues(
    "udp",
    "Fill UDP sockets that nobody reads from.",
    """
SO_MEMINFO = 55
def one():
    held.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sock = held[-1]
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    sock.bind(("127.0.0.1", 0))
    sock.connect(sock.getsockname())
    for _ in range(200):
        sock.send(block)
    return struct.unpack_from("I", sock.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))[0]
""",
)
_queues(
    "unix",
    "Fill unix sockets that nobody reads from.",
    """
def one():
    held.append(socket.socketpair())
    return flood(held[-1][0])
""",
    2 * LIMIT_MB,  # as much as four hundred take where nobody widened their buffers
)
_takes(
    "tcp-ended",
    "Fill the queues of listeners with connections that ended, which nobody accepts.",
    "connections",
    39_000,
    """
def take():
    if OWN_KERNEL:
        elsewhere("connections are its own kernel's there, none is the host's")
        return 0
    listeners = [socket.create_server((f"127.0.0.{n}", 0), backlog=4096) for n in range(1, 40)]
    for _ in range(1000):
        for listening in listeners:
            socket.create_connection(listening.getsockname()).close()
            held.append(1)
    return len(held)
""",
    rests_on=("net_namespace",),
)
