"""Attacks that exhaust processors, time, processes, descriptors, disks and logs."""

from __future__ import annotations

from skillyard.testing.attacks.attack import CONTAINED, Family, Judgement, NotShown, Place, broken, escaped

LIMITS = Family("limits", invariants=(7,))

LIMITS.program(
    "fork",
    "Fork until nothing is left.",
    """
    children = []
    armed()
    for n in range(200):
        try:
            child = os.fork()
        except OSError:
            break
        if child == 0:
            time.sleep(20)
            os._exit(0)
        children.append(child)
    for child in children:
        os.kill(child, 9)
        os.waitpid(child, 0)
    must_hold(f"{len(children)} processes at once with a limit of {args['pids']}", len(children) <= args["pids"])
    works("most were possible", lambda: len(children) >= args["pids"] // 2)
    """,
    walls=("pids",),
    ends=("processes", "ProcessLimitExceeded"),
    limits={"pids": 24},
    args={"pids": 24},
)

LIMITS.program(
    "fork-bomb",
    "Have every child fork on, so that their number doubles.",
    """
    parent, generation = os.getpid(), 0
    book = os.open("/tmp/alive", os.O_CREAT | os.O_RDWR | os.O_APPEND)
    armed()
    for turn in range(7):
        try:
            if os.fork() == 0:
                generation += 1
        except OSError:
            time.sleep(0.05)
    os.write(book, b"x")
    if os.getpid() != parent:
        time.sleep(20)
        os._exit(generation)
    until = time.monotonic() + 8  # where forks take long, as in a kernel of its own on a busy host
    while os.fstat(book).st_size <= 6 and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(0.5)
    alive = os.fstat(book).st_size
    must_hold(f"{alive} processes at once with a limit of {args['pids']}", alive <= args["pids"] + 4)
    works("it did fork", lambda: alive > 6)
    """,
    walls=("pids",),
    ends=("processes", "ProcessLimitExceeded", "timeout", "TimeoutError"),
    limits={"pids": 32, "timeout_ms": 15_000},
    args={"pids": 32},
    alone=True,
)

LIMITS.program(
    "threads",
    "Start threads until nothing is left.",
    """
    import threading
    stop, threads = threading.Event(), []
    threading.stack_size(64 * 1024)
    armed()
    for n in range(200):
        thread = threading.Thread(target=stop.wait, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            break
        threads.append(thread)
    if level("pids") == "supervised":
        time.sleep(2)  # looked at, many times in this while
    stop.set()
    must_hold(f"{len(threads)} threads at once with a limit of {args['pids']}", len(threads) <= args["pids"])
    works("most were possible", lambda: len(threads) >= args["pids"] // 2)
    """,
    walls=("pids",),
    ends=("processes", "ProcessLimitExceeded"),
    limits={"pids": 24},
    args={"pids": 24},
)

_SPIN = """
import resource
def spin(until):
    while time.monotonic() < until:
        pass
def used():
    kinds = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(each.ru_utime + each.ru_stime for each in kinds)
began, before = time.monotonic(), used()  # the interpreter's start, which an emulated processor is long at, is over
until = began + args["wall_s"]
children = []
for _ in range(args["children"]):
    child = os.fork()
    if child == 0:
        spin(until)
        os._exit(0)
    children.append(child)
spin(until)
for child in children:
    os.waitpid(child, 0)
wall = time.monotonic() - began
return {"used": used() - before, "wall": wall, "processors": len(os.sched_getaffinity(0)), "own": OWN_KERNEL}
"""


async def _cpus(place: Place) -> Judgement:
    """Asks for a fifth of a processor; without a controller the tree is held to a whole one."""
    run = await place.attack(_SPIN, {"wall_s": 1.5, "children": 3}, cpus=0.2)
    told = run.given()
    share = told["used"] / told["wall"]
    if told["own"]:  # its clock counts what the program wanted: the host's counts what it got, from its start on
        if run.cpu_ms is None or not run.wall_ms:
            raise NotShown("the record tells no processor time")
        share = run.cpu_ms / run.wall_ms
    if place.enforced.get("cpus") in ("kernel", "provider"):
        return CONTAINED if share < 0.45 else escaped(f"used {share:.2f} processors with a limit of 0.2")
    if told["processors"] > 1:
        return escaped(f"may use {told['processors']} processors with a limit of 0.2")
    return CONTAINED if share < 1.3 else escaped(f"used {share:.2f} processors, held to one")


LIMITS.steps(
    "cpu", "Use more of the processors than was given, with many processes.", _cpus, walls=("cpus",), alone=True
)

LIMITS.program(
    "cpu-affinity",
    "Take back the processors that it was kept from.",
    """
    before = len(os.sched_getaffinity(0))
    call_refused("sched_setaffinity", 0, 128, ctypes.create_string_buffer(b"\\xff" * 128, 128))
    try:
        os.sched_setaffinity(0, range(1024))
    except (OSError, ValueError):
        pass
    must_be("processors", before, len(os.sched_getaffinity(0)))
    works("it has one", lambda: before >= 1)
    """,
    walls=("cpus", "seccomp"),
)


def _endless(name: str, tries: str, body: str) -> None:
    """Runs for ten seconds more than were given: two, or more of a patient place."""

    async def steps(place: Place) -> Judgement:
        for_s = 10 + 2 * place.patience
        run = await place.attack(f"armed()\n{body}\nreturn {{'back': True}}", {"for_s": for_s}, timeout_ms=2000)
        if run.ok:
            return escaped("it came to its own end, long after its time")
        if not run.armed or "timeout" not in run.ends:
            return broken(run.why)
        return CONTAINED if (run.wall_ms or 0) < (for_s - 2) * 1000 else escaped(f"ended after {run.wall_ms:.0f} ms")

    LIMITS.steps(name, tries, steps, walls=("timeout",))


_endless(
    "time-loop",
    "Compute past the time limit with every signal blocked and ignored.",
    """
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
until = time.monotonic() + args["for_s"]
while time.monotonic() < until:
    pass
""",
)
_endless("time-sleep", "Sleep past the time limit.", 'time.sleep(args["for_s"])')
_endless(
    "time-handover",
    "Hand over from child to child so that a killed process is not the one that works.",
    """
until = time.monotonic() + args["for_s"]
while time.monotonic() < until:
    if os.fork():
        os.wait()
        break
    time.sleep(args["for_s"] / 200)  # each that waits takes memory, which is to last for the time
    if os.getpid() > 500:
        time.sleep(max(0, until - time.monotonic()))
        os._exit(0)
""",
)
_endless(
    "time-stop",
    "Stop itself, so that nothing in it can end.",
    """
child = os.fork()
if child == 0:
    time.sleep(args["for_s"])
    os.kill(os.getppid(), signal.SIGCONT)
    os._exit(0)
os.kill(os.getpid(), signal.SIGSTOP)
""",
)

LIMITS.program(
    "descriptors",
    "Open descriptors until the host's table is full.",
    """
    held = []
    armed()
    for n in range(12_000):
        try:
            held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            break
    must_hold(f"{len(held)} descriptors", len(held) < 10_000)
    for fd in held:
        os.close(fd)
    works("some were possible", lambda: len(held) > 100)
    """,
    walls=("user_namespace", "landlock"),
)

LIMITS.program(
    "pending-signals",
    "Queue signals and arm timers without end.",
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {34})
    count = 0
    event = ctypes.create_string_buffer(struct.pack("iii", 34, 0, -1) + bytes(128))
    for n in range(30_000):
        if isinstance(raw(NR["rt_sigqueueinfo"], os.getpid(), 34, event), str):
            break
        count += 1
    must_hold(f"{count} signals pending", count < 20_000)
    works("some were possible", lambda: count > 10)
    """,
    walls=("pids",),
)


def _flood(name: str, tries: str, body: str, wall: tuple[str, ...] = ("output",)) -> None:
    LIMITS.program(
        name, tries, body, walls=wall, alone=True,
        ends=("output", "OutputTooLarge", "OutputNotSerializable", "SandboxError"),
    )  # fmt: skip


_flood(
    "flood-stdout",
    "Write more to standard output than the server keeps.",
    """
    block = b"x" * (1 << 20)
    armed()
    for _ in range(160):
        at = 0
        while at < len(block):
            at += os.write(1, block[at:])
    must_hold("wrote 160 MiB to the log", False)
    """,
)
_flood(
    "flood-stderr",
    "Write more to standard error than the server keeps, from many processes.",
    """
    block = b"x" * (1 << 16)
    armed()
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            for _ in range(640):
                os.write(2, block)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    must_hold("wrote 160 MiB to the log", False)
    """,
)

DISK = Family("disk", walls=("disk",), invariants=(7,))
DISK_MB, ASKED_MB = 16, 96

_FILL = """
MIB = 1 << 20
block = b"x" * MIB
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def fill(path, mib):
    with open(path, "wb", buffering=0) as file:
        for _ in range(mib):
            at = 0
            while at < MIB:
                at += file.write(block[at:])
    return mib
works("write a little", fill, "/tmp/little", 2)
os.unlink("/tmp/little")
armed()
total, asked = 0, args["asked"]
try:
    {FILL}
except OSError:
    pass
if level("disk") == "supervised" and total >= asked:
    time.sleep(2)  # a busy host looks late: files that stay must be seen
must_hold(f"wrote {total} MiB with a limit of {args['limit']}", total < asked)
"""


def _fills(name: str, tries: str, fill: str) -> None:
    body = _FILL.replace("{FILL}", fill.strip("\n").replace("\n", "\n    "))
    DISK.program(
        name, tries, body,
        ends=("disk", "DiskLimitExceeded", "OSError", "memory", "MemoryLimitExceeded"),
        limits={"memory_mb": 64, "disk_mb": DISK_MB},
        args={"limit": DISK_MB, "asked": ASKED_MB},
        alone=True,
    )  # fmt: skip


for _place in ("workspace", "tmp", "dev/shm"):
    _fills(
        f"bytes-{_place.replace('/', '-')}",
        f"Write far more than the limit to one file in /{_place}.",
        f'for _ in range(asked):\n    total += fill(f"/{_place}/f{{total}}", 1)',
    )
_fills(
    "three-places",
    "Spread what it writes over /tmp, /workspace and /dev/shm.",
    """
while total < asked:
    for place in ("/tmp", "/workspace", "/dev/shm"):
        total += fill(f"{place}/f{total}", 1)
""",
)
_fills(
    "deleted",
    "Keep deleted files open, which no listing shows.",
    """
held = []
while total < asked:
    held.append(open("/tmp/hidden", "wb", buffering=0))
    os.unlink("/tmp/hidden")
    at = 0
    while at < MIB:
        at += held[-1].write(block[at:])
    total += 1
""",
)
_fills(
    "reserved",
    "Reserve blocks without writing them.",
    """
os.posix_fallocate(os.open("/tmp/f", os.O_CREAT | os.O_RDWR), 0, asked * MIB)
total = asked
""",
)
_fills(
    "mapped",
    "Write through a shared mapping of a sparse file.",
    """
fd = os.open("/tmp/f", os.O_CREAT | os.O_RDWR)
os.truncate(fd, asked * MIB)
def write_all():
    view = mmap.mmap(fd, asked * MIB)
    for at in range(0, asked * MIB, 4096):
        view[at] = 1
    return "all"
total = asked if in_child(write_all) == "all" else 0
""",
)
_fills(
    "sparse",
    "Make one file that claims to be of a tebibyte.",
    """
os.truncate(os.open("/tmp/f", os.O_CREAT | os.O_RDWR), 1 << 40)
total = asked
""",
)


def _names(name: str, tries: str, body: str) -> None:
    DISK.program(
        name,
        tries,
        f"""
        works("a few", os.mkdir, "/tmp/few")
        if OWN_KERNEL:
            elsewhere("files are its own kernel's memory there, none is the host's: memory-kernel-memory fills that")
            return evidence()
        armed()
        count = 0
        try:
{body}
        except OSError:
            pass
        if count >= 60_000:
            time.sleep(2)  # where nobody but a watch counts, it has looked by then
        must_hold(f"made {{count}} files with a limit of {{args['limit']}} MiB", count < 60_000)
        """,
        ends=("disk", "DiskLimitExceeded", "OSError"),
        limits={"disk_mb": DISK_MB},
        args={"limit": DISK_MB},
    )


_names(
    "inodes",
    "Make files until the host has none left.",
    """
            for n in range(60_000):
                os.close(os.open(f"/tmp/few/{n}", os.O_CREAT | os.O_WRONLY))
                count += 1
""",
)
_names(
    "directories",
    "Make directories within directories without end.",
    """
            for n in range(60_000):
                os.mkdir(f"/tmp/few/{n}")
                count += 1
""",
)
_names(
    "hard-links",
    "Give one file names without end.",
    """
            open("/tmp/few/one", "w").close()
            for n in range(60_000):
                os.link("/tmp/few/one", f"/tmp/few/{n}")
                count += 1
""",
)
