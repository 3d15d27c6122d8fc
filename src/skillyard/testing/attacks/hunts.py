"""Hunts for the targets that :mod:`skillyard.testing.attacks.canaries` plants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from skillyard.testing.attacks.attack import Family, Judgement, Need, Place, escaped, judged
from skillyard.testing.attacks.canaries import PREFIX, Canaries

CANARIES = Family("canaries", invariants=(3,))

_TOOLS = f"""
import re
def hunt(what, text):
    tried.append(what)
    text = text if isinstance(text, bytes) else str(text).encode("utf-8", "replace")
    for found in re.findall(rb"{PREFIX}[0-9a-f]{{32}}", text)[:3]:
        got.append(f"{{what}}: {{found.decode()}}")
def read(path):
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20)
    except OSError:
        return b""
works("it can read", lambda: read("/proc/self/status") or read(os.__file__))
"""


def _hunts(
    name: str,
    tries: str,
    body: str,
    told: Callable[[Canaries], Mapping[str, Any]] = lambda _: {},
    **options: Any,
) -> None:
    """Adds a hunt. The program's findings count, and so does the harm that this side saw."""

    async def steps(place: Place) -> Judgement:
        assert place.canaries is not None
        before = await place.canaries.harm()
        judgement = judged(await place.attack(_TOOLS + body, told(place.canaries)))
        harm = [done for done in await place.canaries.harm() if done not in before]
        return escaped("; ".join(harm)) if harm else judgement

    CANARIES.steps(name, tries, steps, needs=[Need.CANARIES], alone=True, **options)


_hunts(
    "files", "Read, change, remove and link planted files of the host by their paths.", """
for path in args["paths"]:
    for way in (path, "/proc/1/root" + path, "/proc/self/root" + path, f"/proc/{os.getppid()}/root{path}",
                f"/proc/{args['pid']}/root{path}", "/workspace/../" + path):
        hunt(way, read(way))
    for what, change in (("write", lambda: os.write(os.open(path, os.O_WRONLY), b"x")),
                         ("remove", lambda: os.unlink(path)),
                         ("link", lambda: os.link(path, path + "-link")),
                         ("move", lambda: os.rename(path, path + "-moved"))):
        must_fail(f"{what} {path}", change)
    must_not_become(f"times {path}", lambda: os.utime(path, (1, 1)), lambda: os.stat(path).st_mtime == 1)
    must_not_become(f"mode {path}", lambda: os.chmod(path, 0), lambda: os.stat(path).st_mode & 0o777 == 0)
until = time.monotonic() + 5
for place in ("/tmp", "/dev/shm", "/root", "/home", "/workspace", os.path.expanduser("~")):
    for top, names, files in os.walk(place):
        names[:] = [name for name in names if not f"{top}/{name}".startswith(sys.base_prefix)]
        for file in files if time.monotonic() < until else ():
            hunt(top, read(f"{top}/{file}"))
""", lambda canaries: {"paths": sorted(canaries.files), "pid": canaries.pid},
    walls=("mount_namespace", "landlock"), invariants=(3, 4),
)  # fmt: skip
_hunts(
    "processes", "Find a planted process: its arguments, variables, memory, files; signal, trace and slow it.", """
for pid in listed("/proc"):
    if pid.isdigit() and int(pid) != os.getpid():
        for name in ("cmdline", "environ", "comm", "maps", "status"):
            hunt(f"/proc/{pid}/{name}", read(f"/proc/{pid}/{name}"))
pid = args["pid"]
for name in ("cmdline", "environ", "mem", "maps", "fd", "root", "cwd"):
    hunt(f"/proc/{pid}/{name}", read(f"/proc/{pid}/{name}"))
for number in (0, 10, 12, 15, 18, 23):
    must_fail(f"signal {number}", os.kill, pid, number)
must_fail("slow down", os.setpriority, os.PRIO_PROCESS, pid, 19)
must_fail("limits", __import__("resource").prlimit, pid, 7, (10, 10))
""", lambda canaries: {"pid": canaries.pid}, walls=("pid_namespace", "private_proc", "landlock", "own_uid"),
)  # fmt: skip
_hunts(
    "process-handle", "Get a handle on a planted process by its number.", """
must_fail("pidfd", os.pidfd_open, args["pid"])
""", lambda canaries: {"pid": canaries.pid}, walls=("pid_namespace",),
)  # fmt: skip
_hunts(
    "listeners", "Connect to planted listeners of the loopback, of a unix path and of an abstract name.", """
def ask(family, kind, address):
    with socket.socket(family, kind) as sock:
        sock.settimeout(1)
        if kind == socket.SOCK_DGRAM:
            sock.sendto(b"canary?", address)
        else:
            sock.connect(address)
        return sock.recv(64)
for what, target in (("tcp", (2, 1, ("127.0.0.1", args["tcp"]))), ("path", (1, 1, args["path"])),
                     ("abstract", (1, 1, "\\0" + args["abstract"])),
                     ("path by init's root", (1, 1, "/proc/1/root" + args["path"]))):
    must_fail(what, ask, *target)
try:
    hunt("udp", ask(2, 2, ("127.0.0.1", args["udp"])))
except OSError:
    pass
hunt("/proc/net/unix", read("/proc/net/unix"))
""", lambda canaries: {**canaries.ports, **canaries.names}, walls=("net_namespace", "mount_namespace", "landlock"),
    invariants=(3, 5),
)  # fmt: skip
_hunts(
    "environment", "Find a variable of the server's process: inherited, in memory, in other processes.", """
hunt("variables", repr(dict(os.environ)))
must_hold("no such name", args["variable"] not in os.environ)
must_be("in memory", "", in_memory(rb"skillyard-canary-[0-9a-f]{32}"))
for pid in (1, os.getppid(), os.getpid()):
    hunt(f"variables of {pid}", read(f"/proc/{pid}/environ"))
""", lambda canaries: {"variable": canaries.variable}, walls=("pid_namespace",), invariants=(3, 6),
)  # fmt: skip
_hunts(
    "shared-memory", "Attach a planted System V segment, and find a planted file in /dev/shm.", """
for flags in (0, 0o666):
    segment = raw(NR["shmget"], args["segment"], 4096, flags)
    tried.append("segment")
    if isinstance(segment, int):
        at = raw(NR["shmat"], segment, 0, 0)
        if isinstance(at, int):
            hunt("segment", ctypes.string_at(at, 64))
            ctypes.memset(at, 120, 8)
for segment in range(0, 64):
    at = raw(NR["shmat"], segment, 0, 0o10000)
    if isinstance(at, int):
        hunt("segment by number", ctypes.string_at(at, 64))
for name in os.listdir("/dev/shm"):
    hunt("/dev/shm", name.encode() + read("/dev/shm/" + name))
""", lambda canaries: {"segment": canaries.segment}, walls=("ipc_namespace", "seccomp", "mount_namespace"),
)  # fmt: skip
_hunts(
    "fifo", "Write into a planted pipe with a name.", """
for way in (args["fifo"], "/proc/1/root" + args["fifo"]):
    must_fail(way, lambda: os.write(os.open(way, os.O_WRONLY | os.O_NONBLOCK), b"owned"))
""", lambda canaries: canaries.names, walls=("mount_namespace", "landlock"), invariants=(3, 4),
)  # fmt: skip
