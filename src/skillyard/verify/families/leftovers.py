"""What one run leaves, and what the next one finds."""

from __future__ import annotations

from skillyard.verify.attack import CONTAINED, Judgement, broken, escaped
from skillyard.verify.judge import told
from skillyard.verify.make import Family
from skillyard.verify.yard import Yard

FAMILY = Family("leftovers", invariants=(8,))
_TURNS = 6
"""Enough for sandboxes that were made ahead, before what is looked for was left, to be used up."""


def _left(
    name: str, tries: str, leave: str, look: str, *, walls: tuple[str, ...] = (), rests_on: tuple[str, ...] = ()
) -> None:
    """Registers an attack: ``leave`` runs once, then ``look`` in several other sandboxes. ``leave`` may return
    evidence(left=...), which ``look`` has as ``args["left"]``; ``look`` reports by must_*."""

    async def steps(yard: Yard) -> Judgement:
        left = await yard.attack(leave)
        if not left.ok or left.output["wrong"]:
            return broken(str(left.output["wrong"]) if left.ok else told(left))
        for _ in range(_TURNS):
            found = await yard.attack(look, {"left": left.output.get("left")})
            if not found.ok or found.output["wrong"]:
                return broken(str(found.output["wrong"]) if found.ok else told(found))
            if found.output["got"]:
                return escaped("; ".join(found.output["got"]))
        return CONTAINED

    FAMILY.steps(name, tries, steps, walls=walls, rests_on=rests_on)


_left(
    "files",
    "Find files, links and directories of an earlier run in the places that both may write.",
    """
    for place in ("/tmp", "/workspace", "/workspace/out", "/dev/shm"):
        works(place, lambda: open(f"{place}/left", "w").close())
        os.makedirs(f"{place}/.hidden/deep")
    for place in ("/run", "/run/box", "/run/empty", "/var/tmp", "/skills", "/blobs", "/opt"):
        try:
            open(f"{place}/left", "w").close()
        except OSError:
            pass
    """,
    """
    for place in ("/tmp", "/workspace", "/workspace/out", "/dev/shm", "/run/box", "/run/empty", "/var/tmp"):
        must_be(f"files in {place}", [], [name for name in listed(place) if (place, name) != ("/workspace", "out")])
    """,
    walls=("mount_namespace",),
)
_left(
    "sockets",
    "Find sockets, ports and abstract names of an earlier run.",
    """
    server = socket.socket(socket.AF_UNIX)
    works("bind", server.bind, "\\0verify-left")
    server.listen()
    port = works("port", socket.create_server, ("127.0.0.1", 47999))
    if os.fork() == 0:
        os.setsid()
        time.sleep(15)
        os._exit(0)
    """,
    """
    own = socket.socket(socket.AF_UNIX)
    must_fail("a listener by name", own.connect, "\\0verify-left")
    with socket.socket() as sock:
        must_fail("a listener by port", sock.connect, ("127.0.0.1", 47999))
    """,
    walls=("net_namespace",),
    rests_on=("net_namespace",),
)
_left(
    "system-v",
    "Find System V and POSIX shared memory and queues of an earlier run.",
    """
    made = raw(NR["shmget"], 0x5AFE, 4096, 0o1666)
    for name in ("left", "sem.left"):
        works(name, lambda: open(f"/dev/shm/{name}", "w").close())
    raw(NR["mq_open"], b"verify-left", 66, 0o666, 0)
    """,
    """
    answer = raw(NR["shmget"], 0x5AFE, 4096, 0)
    must_hold(f"shared memory by key: {answer}", isinstance(answer, str))
    answer = raw(NR["mq_open"], b"verify-left", 0, 0, 0)
    must_hold(f"queue by name: {answer}", isinstance(answer, str))
    must_be("names in /dev/shm", [], os.listdir("/dev/shm"))
    """,
    walls=("ipc_namespace", "seccomp"),
)
_left(
    "processes",
    "Find processes of an earlier run.",
    """
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            time.sleep(15)
            os._exit(0)
    works("they run", lambda: True)
    """,
    """
    own = {1, os.getpid()}
    must_be("processes", [], sorted(int(n) for n in os.listdir("/proc") if n.isdigit() and int(n) not in own))
    """,
    walls=("pid_namespace", "private_proc"),
    rests_on=("private_proc",),
)
_left(
    "shared-times",
    "Leave a mark in the times of device files, which all runs and the host have in common.",
    """
    marked = {}
    for name in ("null", "zero", "full", "random", "urandom"):
        for times in ((1_000_000_007, 1_000_000_007), None):
            try:
                os.utime(f"/dev/{name}", times)
            except OSError:
                continue
            marked[name] = os.stat(f"/dev/{name}").st_mtime_ns
            break
    works("its own file", lambda: (open("/tmp/own", "w").close(), os.utime("/tmp/own")))
    return evidence(left=marked)
    """,
    """
    for name, marked in args["left"].items():
        if os.path.exists(f"/dev/{name}"):
            must_hold(f"/dev/{name} bears the mark", os.stat(f"/dev/{name}").st_mtime_ns != marked)
    """,
    walls=("read_only_root", "mount_namespace", "user_namespace"),
)
_left(
    "settings",
    "Leave changes in its name, environment, limits, priority and current directory for the next run.",
    """
    import resource
    os.environ["LEFT"] = "1"
    os.chdir("/tmp")
    os.umask(0)
    os.setpriority(os.PRIO_PROCESS, 0, 15)
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    works("all is set", lambda: os.environ["LEFT"] == "1")
    """,
    """
    import resource
    must_hold("no variable", "LEFT" not in os.environ)
    must_be("directory", os.path.realpath("/workspace"), os.getcwd())
    must_be("mask", 0o022, os.umask(0o022))
    own = level("cpus") == "supervised" and level("user_namespace") == "missing"  # niceness is what shares there
    must_hold("priority", own or os.getpriority(os.PRIO_PROCESS, 0) < 15)
    must_hold("descriptors", resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 40)
    must_be("handler of SIGTERM", signal.SIG_DFL, signal.getsignal(signal.SIGTERM))
    """,
)
