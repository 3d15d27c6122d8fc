"""Attacks by objects that the kernel counts by user, by nobody or late: locks and others."""

from __future__ import annotations

from skillyard.verify.make import Family

LIMIT_MB, ASKED_MB = 64, 320

FAMILY = Family("objects", walls=("memory",), invariants=(7,))

_ENDS = ("memory", "MemoryLimitExceeded", "MemoryError", "OSError")
_BODY = """
held = []
armed()
try:
    count = take()
except (MemoryError, OSError):
    count = 0
    works("take some", lambda: bool(held))
tried.append("take")
until = time.monotonic() + 5
while time.monotonic() < until:
    time.sleep(0.1)
must_hold(f"kept {count} {args['what']}", count < args["asked"])
"""


def _takes(name: str, tries: str, what: str, asked: int, define: str, *, rests_on: tuple[str, ...] = ()) -> None:
    FAMILY.program(
        name,
        tries,
        "import fcntl, select\n" + define.strip("\n") + "\n" + _BODY,
        ends=_ENDS,
        limits={"memory_mb": LIMIT_MB, "disk_mb": 16, "pids": 64},
        args={"what": what, "asked": asked},
        alone=True,
        rests_on=rests_on,
    )


_takes(
    "locks",
    "Lock every second byte of many files, which is memory that the kernel counts for nobody.",
    "locks",
    20_000,
    """
def take():
    if OWN_KERNEL:
        elsewhere("locks are its own kernel's memory there, none is the host's")
    for number in range(40):
        held.append(os.open(f"locked-{number}", os.O_CREAT | os.O_RDWR))
        for at in range(0, 1000, 2):
            fcntl.lockf(held[-1], fcntl.LOCK_EX, 1, at)
    return 20_000
""",
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
    pipes = [os.pipe()[0] for _ in range(100)]
    for _ in range(40):
        held.append(select.epoll())
    count = 0
    for number in range(900, 960):
        for pipe in pipes:
            os.dup2(pipe, number)
            for epoll in held:
                epoll.register(number)
                count += 1
    return count
""",
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
    for _ in range(3):
        held.append(socket.socketpair())
        socket.send_fds(held[-1][0], [b"x"], [0] * 200)
    return 600
""",
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


def _queues(name: str, tries: str, define: str) -> None:
    _takes(name, tries, "MiB in queues", ASKED_MB, define + _FLOOD, rests_on=("net_namespace",))


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
