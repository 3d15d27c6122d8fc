"""Attacks on the next run: leftovers, poison in the interpreter, foretold random numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from skillyard.testing.attacks.attack import CONTAINED, Family, Judgement, Place, escaped, judged

_TURNS = 6
"""Enough for sandboxes that were made ahead, before something was left for them, to be used up."""


def _sequel(family: Family, name: str, tries: str, leave: str, look: str, **options: Any) -> None:
    """Adds an attack: ``leave`` runs once, then ``look`` in several other sandboxes. ``leave`` shows by works() that it
    does something and may return evidence(left=...), which ``look`` has as ``args["left"]``."""

    async def steps(place: Place) -> Judgement:
        left = (await place.attack(leave)).given().get("left")
        for _ in range(_TURNS):
            judgement = judged(await place.attack("tried.append('look')\n" + textwrap.dedent(look), {"left": left}))
            if judgement is not CONTAINED:
                return judgement
        return CONTAINED

    family.steps(name, tries, steps, **options)


LEFTOVERS = Family("leftovers", invariants=(8,))

_sequel(
    LEFTOVERS,
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
_sequel(
    LEFTOVERS,
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
_sequel(
    LEFTOVERS,
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
_sequel(
    LEFTOVERS,
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
_sequel(
    LEFTOVERS,
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
_sequel(
    LEFTOVERS,
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

POISONING = Family("poisoning", invariants=(3, 8))

_sequel(
    POISONING,
    "modules",
    "Replace functions of builtins and of modules that were imported ahead, and add modules of its own.",
    """
    import builtins, io, json, types
    json.dumps = lambda *a, **k: "poisoned"
    builtins.open, real = (lambda *a, **k: io.StringIO("poisoned")), builtins.open
    builtins.poisoned = True
    os.getpid = lambda: 4242
    sys.modules["evil"] = types.ModuleType("evil")
    sys.path.insert(0, "/tmp")
    sys.setrecursionlimit(123)
    works("it is poisoned", lambda: json.dumps(1) == "poisoned" and os.getpid() == 4242)
    json.dumps = __import__("importlib").reload(__import__("json")).dumps
    """,
    """
    import builtins, json
    must_be("json", "[1]", json.dumps([1]))
    must_hold("builtins", not hasattr(builtins, "poisoned"))
    must_hold("os.getpid", os.getpid() != 4242)
    must_hold("modules", "evil" not in sys.modules)
    must_hold("path", "/tmp" not in sys.path)
    must_hold("recursion limit", sys.getrecursionlimit() != 123)
    """,
)
_sequel(
    POISONING,
    "objects",
    "Write over objects that every Python has in common, in memory: small numbers, names, code.",
    """
    import json.encoder
    def overwrite(target, value):
        ctypes.memmove(id(target) + 24, ctypes.string_at(id(value) + 24, 4), 4)
    class Mark: pass
    json.encoder.JSONEncoder.poisoned = Mark
    child = in_child(lambda: (overwrite(200, 201), str(100 + 100))[1])
    works("a small number can be written over", lambda: child == "201")
    """,
    """
    import json.encoder
    must_hold("classes", not hasattr(json.encoder.JSONEncoder, "poisoned"))
    must_be("numbers", "200", str(100 + 100))
    """,
)
_sequel(
    POISONING,
    "pages",
    "Write a mark into every page of the interpreter's memory that it can write, shared or not.",
    """
    marked = 0
    mark = b"VERIFY-MARK-" + b"PAGE"
    shared = []
    for line in open("/proc/self/maps"):
        span, rights, offset, device, inode, *path = line.split()
        low, high = (int(part, 16) for part in span.split("-"))
        if rights[1] == "w" and rights[3] == "s":
            shared.append(line.strip())
            ctypes.memmove(low, mark, len(mark))
            marked += 1
    spare = bytearray(b"VERIFY-MARK-" + b"PAGE")
    works("memory can be written", lambda: ctypes.memmove(ctypes.addressof(ctypes.c_char.from_buffer(spare)), mark, 16))
    must_be("mappings that it may share for writing", [], shared[:3])
    """,
    """
    mark = b"VERIFY-MARK-" + b"PAGE"
    for line in open("/proc/self/maps"):
        span, rights, *rest = line.split()
        if rights[1] == "w" and rights[3] == "s":
            low = int(span.split("-")[0], 16)
            must_hold("no mark in " + line.strip()[-40:], ctypes.string_at(low, 16) != mark)
            got.append("a shared mapping: " + line.strip()[-60:])
    tried.append("look")
    """,
)
_sequel(
    POISONING,
    "descriptors",
    "Change descriptors that it inherited: flags, offsets, locks, owners and data waiting in them.",
    """
    import fcntl
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    inherited = [fd for fd in range(0, 64) if os.path.exists(f"/proc/self/fd/{fd}")]
    for fd in inherited:
        for change in (lambda: fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND | os.O_ASYNC),
                       lambda: os.lseek(fd, 4096, 0), lambda: fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid()),
                       lambda: fcntl.fcntl(fd, 1031, 1 << 16), lambda: fcntl.fcntl(fd, 1036, ctypes.c_uint64(5))):
            try:
                change()
            except OSError:
                pass
    must_be("descriptors that it inherited", [0, 1, 2, 3], [fd for fd in inherited if fd < 4])
    works("one of its own", lambda: os.open("/tmp/x", os.O_CREAT | os.O_RDWR) > 2)
    fcntl.fcntl(1, fcntl.F_SETFL, 0)
    """,
    """
    import fcntl
    # Such a kernel answers F_GETOWN_EX and writes nothing: the C library tells what lay there, of any file the same
    nobody = fcntl.fcntl(os.open("/tmp/nobodys", os.O_CREAT | os.O_RDWR), fcntl.F_GETOWN) if OWN_KERNEL else 0
    for fd in (fd for fd in range(0, 4) if os.path.exists(f"/proc/self/fd/{fd}")):
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        must_hold(f"flags of {fd}: {flags:o}", not flags & (os.O_APPEND | os.O_ASYNC | os.O_NONBLOCK))
        must_be(f"owner of {fd}", nobody, fcntl.fcntl(fd, fcntl.F_GETOWN))
        try:
            must_be(f"offset of {fd}", 0, os.lseek(fd, 0, 1))
        except OSError:
            pass
    """,
)
_sequel(
    POISONING,
    "imports",
    "Plant modules where the interpreter looks first: next to the code, in site directories, in the bytecode cache.",
    """
    import site, sysconfig
    places = {"/workspace", "/tmp", sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), "/run/empty", "/opt",
              "/usr/lib/python3/dist-packages", "/usr/local/lib/python3/dist-packages",
              "/workspace/.local/lib/python3/site-packages"}
    planted = []
    for place in places:
        for name in ("sitecustomize.py", "usercustomize.py", "antigravity_evil.py"):
            try:
                os.makedirs(place, exist_ok=True)
                with open(f"{place}/{name}", "w") as file:
                    file.write("import sys; sys.poisoned = True")
                planted.append(place)
            except OSError:
                continue
    works("at home it can", lambda: "/workspace" in planted)
    """,
    """
    import importlib, sysconfig
    for place in (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), "/run/empty", "/opt", "/workspace",
                  "/tmp", "/usr/lib/python3/dist-packages", "/usr/local/lib/python3/dist-packages"):
        must_hold(f"nothing was planted in {place}", not os.path.exists(f"{place}/antigravity_evil.py"))
    must_hold("the interpreter is not poisoned", not hasattr(sys, "poisoned"))
    for name in ("antigravity_evil", "sitecustomize", "usercustomize"):
        tried.append(name)
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if "poisoned" in text_of(module.__file__):
            got.append(f"{name} from {module.__file__}")
    """,
    walls=("read_only_root", "landlock", "mount_namespace"),
)

RANDOMNESS = Family("randomness", invariants=(3, 8))
DRAWS = """
import sys
HERE = sorted(sys.modules)
import gc, json, os, random, secrets, ssl, tempfile, uuid

def draw():
    return {"random": random.random(), "bits": random.getrandbits(64), "secrets": secrets.token_hex(8),
            "uuid": str(uuid.uuid4()), "urandom": os.urandom(8).hex(), "temp": os.path.basename(tempfile.mktemp()),
            "system": random.SystemRandom().random(), "mac": str(uuid.uuid1()), "ssl": ssl.RAND_bytes(8).hex()}

def kept():
    return [thing.getrandbits(64) for thing in gc.get_objects()
            if type(thing) is random.Random and thing is not random._inst]

def child(deep):
    come, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        told = child(False) if deep else draw()
        os.write(go, json.dumps(told).encode())
        os._exit(0)
    os.close(go)
    told = json.loads(b"".join(iter(lambda: os.read(come, 65536), b"")))
    os.close(come)
    os.waitpid(pid, 0)
    return told

def main(args):
    mine = [child(False), child(True), draw()] if args["children"] else [draw()]
    return {"here": HERE, "drawn": mine, "kept": kept()}
"""
"""Draws from every generator, and from those that modules keep; tells which modules were there before."""


def alike(told: Sequence[Mapping[str, Any]]) -> Judgement:
    """Judges what several runs of :data:`DRAWS` gave: no two may have drawn the same."""
    drawn: dict[str, list[object]] = {"generators that modules keep": [n for one in told for n in one["kept"]]}
    for row in (row for one in told for row in one["drawn"]):
        for name, value in row.items():
            drawn.setdefault(name, []).append(value)
    same = [name for name, values in drawn.items() if len(set(values)) < len(values)]
    return escaped(f"runs draw the same {', '.join(same)}") if same else CONTAINED


async def _drawn(place: Place, *, children: bool) -> Judgement:
    return alike([(await place.run(DRAWS, {"children": children})).given() for _ in range(4)])


RANDOMNESS.steps("runs", "Foretell the random numbers of a later run from its own.", partial(_drawn, children=False))
RANDOMNESS.steps(
    "children",
    "Foretell what processes of a later run draw from what its own draw.",
    partial(_drawn, children=True),
)
