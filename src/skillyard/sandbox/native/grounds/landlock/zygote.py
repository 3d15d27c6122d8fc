"""Starts a landlock zygote: its own id, Landlock and filters, then the interpreter by exec.

The filters close system calls that no namespace makes harmless here (seccomp(2)). They come on top of the native
backend's filters; of several, the kernel heeds the strictest.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from skillyard.ipc import packets
from skillyard.sandbox.native.grounds.landlock.area import Area, Python
from skillyard.sandbox.native.grounds.landlock.inside import walls
from skillyard.sandbox.native.grounds.landlock.inside.walls import Rule
from skillyard.sandbox.native.grounds.namespaces.zygote import KEEPER_FD, environment, keep_only, lessen_descriptors
from skillyard.sandbox.native.grounds.root import DEVICES, ETC, LINKS_OR_DIRECTORIES, SYSTEM_DIRECTORIES, Interpreter
from skillyard.sandbox.native.keeper.zygotes.process import Started
from skillyard.sandbox.native.linux import bpf, kernel, namespaces, seccomp, supervision
from skillyard.sandbox.native.linux.bpf import ALLOW, AND, ARG0, ARG1, ARG2, ARG3, JEQ, JGE, LOAD, Instruction, refuse
from skillyard.sandbox.native.linux.call_arguments import AF_INET, AF_INET6, INTERFACES
from skillyard.sandbox.native.linux.seccomp import BUILDING
from skillyard.sandbox.native.linux.syscall_numbers import numbers

_OOM_SCORE = "500"
_CAP_SETGID, _CAP_SETUID, _CAP_SETPCAP = 6, 7, 8
_CAPABILITIES = 64

START = (
    "import sys, json; settings = json.loads(sys.argv[1]); sys.path.append(settings['code']);"
    f" from skillyard.sandbox.native.grounds.landlock.inside.zygote import main; main({KEEPER_FD}, settings)"
)


@dataclass(frozen=True, slots=True)
class Block:
    """Ids of one zygote, which is the first, and its sandboxes; 0 where there are none."""

    first: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class ZygotePlan:
    python: Python
    packages: str
    modules: tuple[str, ...]
    block: Block
    area: Area
    landlock: int
    own_ids: bool
    on_start: Callable[[int], None]
    """Called with the pid of each zygote."""
    supervise: Callable[[socket.socket], None] | None = None
    """Gets the socket on which the supervisor's descriptor of its sandboxes' calls will come; None for no sockets."""

    def start(self, sock: socket.socket, errors: int, modules: tuple[str, ...]) -> Started:
        """Starts a zygote that speaks on ``sock`` and writes errors to ``errors``. Raises OSError."""
        ours, theirs = packets.pair()
        pid = os.fork()
        if pid == 0:
            try:
                _become(self, sock, errors, modules, theirs)
            except BaseException as error:  # noqa: BLE001 - this process must end here, and say why
                os.write(errors, f"zygote: {type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(1)
        theirs.close()
        if self.supervise is None:
            ours.close()
        else:
            self.supervise(ours)
        self.on_start(pid)
        return Started(pid)


def _become(
    plan: ZygotePlan, sock: socket.socket, errors: int, modules: tuple[str, ...], supervisor: socket.socket
) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgid(0, 0)  # what it clones is in its group, and can be told from what others cloned
    _raise_oom_score()
    packages = plan.python.show_packages(plan.packages, plan.area)
    own_proc = not modules
    further = [plan.area.code, packages.place, *([packages.packages] if packages.packages else [])]
    exact = exact_rules(plan.python.shown, further)
    coarse = coarse_rules(plan.python.shown, further)
    os.chdir("/")
    os.umask(0o022)
    if plan.own_ids:
        _be_somebody(plan.block.first)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of ids takes it away
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    walls.confine_zygote(plan.landlock, exact, plan.area.homes, own_proc=own_proc)
    settings = {
        "code": plan.area.code,
        "packages": packages.packages,
        "preload": list(modules),
        "landlock": plan.landlock,
        "rules": coarse,
        "own_proc": own_proc,
        "closing": closing_filter().hex(),
    }
    _install(plan, supervisor)
    _exec(plan, packages.executable, settings, sock, errors)


def _raise_oom_score() -> None:
    """Makes foreign code end first when the host runs out of memory."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(_OOM_SCORE)


def _be_somebody(uid: int) -> None:
    """Takes an id of its own, and keeps only the right to take others (capabilities(7))."""
    may_lock = bool(namespaces.capabilities() >> _CAP_SETPCAP & 1)
    os.setgroups([])
    kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    kept = (_CAP_SETGID, _CAP_SETUID)
    kernel.hold_only(*kept, *([_CAP_SETPCAP] if may_lock else []))
    for capability in kept:
        kernel.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_RAISE, capability)
    if may_lock:
        kernel.prctl(kernel.PR_SET_SECUREBITS, kernel.SECBITS_LOCKED)
        for capability in range(_CAPABILITIES):
            try:
                kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
            except OSError:
                break  # there are no more
        kernel.hold_only(*kept)


def _install(plan: ZygotePlan, supervisor: socket.socket) -> None:
    """Installs the filter of this level. No process but the keeper keeps the descriptor that decides calls."""
    block = (plan.block.first, plan.block.count) if plan.own_ids else None
    made = zygote_filter(block, plan.landlock, supervised=plan.supervise is not None)
    if plan.supervise is None:
        kernel.install_filter(made)
    else:
        packets.send(supervisor, {}, [supervision.install(made)])


def _exec(plan: ZygotePlan, executable: str, settings: dict[str, object], sock: socket.socket, errors: int) -> None:
    keep_only(sock, errors)
    if settings["preload"]:
        lessen_descriptors()
    kernel.install_filter(seccomp.assemble(seccomp.large_filter()))
    variables = environment(plan.python.shown) | {"PATH": plan.python.path(executable)} | dict(plan.python.variables)
    os.execve(executable, ["python3", "-I", "-S", "-B", "-c", START, json.dumps(settings)], variables)


_PROC = (
    "cpuinfo", "meminfo", "stat", "uptime", "loadavg", "version", "filesystems", "sys/kernel/osrelease",
    "sys/kernel/pid_max", "sys/kernel/random/uuid", "sys/kernel/cap_last_cap", "sys/vm/overcommit_memory",
)  # fmt: skip
"""Figures of the machine that libraries ask for. Programs see no process but themselves."""

_SYS = (
    "/sys/devices/system/cpu", "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us",
)  # fmt: skip
"""Landlock hides no name, and libraries do not expect a refusal when they open files that are there."""

_UNCOUNTED_DEVICES = frozenset({"zero"})
"""No process shows shared mappings of these as its own memory."""


def coarse_rules(python: Interpreter, further: Iterable[str]) -> list[Rule]:
    """Returns few rules, which each program makes anew; ``further`` are our directories."""
    return [*(Rule(path) for path in (*_directories(python), *further)), *_small()]


def exact_rules(python: Interpreter, further: Iterable[str]) -> list[Rule]:
    """Returns the same for the zygote, without the packages of the host's interpreters."""
    directories = [path for top in _directories(python) for path in _without(top, python.masked)]
    return [*(Rule(path) for path in (*directories, *further)), *_small()]


def _directories(python: Interpreter) -> list[str]:
    wanted = (*SYSTEM_DIRECTORIES, *LINKS_OR_DIRECTORIES, *python.directories)
    return [path for path in dict.fromkeys(wanted) if os.path.isdir(path) and not os.path.islink(path)]


def _small() -> Iterator[Rule]:
    for name in DEVICES:
        if name not in _UNCOUNTED_DEVICES and os.path.exists(f"/dev/{name}"):
            yield Rule(f"/dev/{name}", device=True)
    for path in (*ETC, *_SYS, *(f"/proc/{name}" for name in _PROC)):
        if os.path.exists(path):
            yield Rule(path)


def _without(top: str, masked: Iterable[str]) -> Iterator[str]:
    """Yields directories and files that together are ``top`` without the ``masked`` ones."""
    inner = [path for path in masked if path == top or path.startswith(f"{top}/")]
    if not inner:
        yield top
    elif top not in inner:
        for entry in os.scandir(top):
            if not entry.is_symlink():
                yield from _without(entry.path, inner)


_SOCKETS = ("connect", "bind", "listen", "accept", "accept4")
"""Closed; where ports are forwarded, the first alone.

So are pairs of datagram sockets, since one could be connected to any socket of the host.
"""

_PAIR_TYPES = (1, 5)
"""SOCK_STREAM and SOCK_SEQPACKET, which stay connected as they are (unix(7))."""
_TYPE_MASK = 0xF

_STREAM, _TCP = 1, (0, 6)
_FAST_OPEN = {"sendto": ARG3, "sendmsg": ARG2, "sendmmsg": ARG3}
"""Calls that connect with this flag, and the argument that has it (tcp(7), MSG_FASTOPEN)."""
_MSG_FASTOPEN = 0x20000000

_OPTIONS = {
    1: (2, 7, 8, 9, 10, 13, 15, 16, 18, 20, 21, 66, 67),
    6: (1, 3, 4, 5, 6, 8, 9, 12, 18, 25),
    41: (26, 67),
    0: (1,),
}
"""Options of sockets, by level, where ports are forwarded (socket(7), tcp(7), ipv6(7), ip(7)): reuse, sizes, keeping
alive, lingering, times and SO_PASSCRED; delays, corks and times of TCP; IPV6_V6ONLY; classes of traffic."""

_MESSAGES = ("sendmsg", "sendmmsg")
"""They pass descriptors on, and nobody counts a removed file that only a message holds."""

_ABOUT_OTHERS = {"prlimit64": ARG0, "sched_setscheduler": ARG0, "sched_setparam": ARG0}
"""Calls that name a process, and the argument, which may only be 0, oneself. Landlock does not stop them."""

_ABOUT_MANY = {"setpriority": (0, 1), "ioprio_set": (1, 2)}
"""The same calls for processes and groups, with the kinds that may be named. A user may not: it may be the server's."""

_MODES_AND_TIMES = (
    "chmod", "fchmod", "fchmodat", "fchmodat2", "utime", "utimes", "futimesat",
)  # fmt: skip
"""Landlock lets the owner of a file do these wherever it lies. Where the sandbox's user is the server's, they change
nothing and report success, as on a file system without modes, because programs that copy files would fail otherwise. A
user of its own owns no other files."""
_OWNERS = ("chown", "fchown", "lchown", "fchownat")
_DONE = 0
"""Success, in place of an error's number."""

_IDENTITIES = ("setuid", "setgid", "setreuid", "setregid", "setfsuid", "setfsgid")
_SETRES = ("setresuid", "setresgid")
_KEPT = frozenset(
    {
        "seccomp",
        "landlock_create_ruleset",
        "landlock_add_rule",
        "landlock_restrict_self",
        "sched_setaffinity",
    }
)
"""Calls that build these walls."""

_TRUNCATES = 3
"""The Landlock version that knows truncation."""


def zygote_filter(
    ids: tuple[int, int] | None, version: int, arch: str = kernel.ARCH, *, supervised: bool = False
) -> bytes:
    """Returns the filter of a zygote from its first instruction on.

    ``ids`` are first and count of those that it may give; None where all sandboxes are one user. ``supervised`` lets
    TCP sockets that take connections wait for a supervisor.
    """
    nr = numbers(arch)
    closed = [*(name for name in BUILDING if name not in _KEPT), *_SOCKETS[: 1 if supervised else None], "fallocate"]
    if ids is None:
        closed += _OWNERS
    if version < _TRUNCATES:
        closed.append("truncate")
    program = seccomp.head(arch)
    program += _supervised(nr) if supervised else bpf.when(nr["socket"], [refuse(errno.EAFNOSUPPORT)])
    program += bpf.when(nr["ioctl"], [*bpf.none_of(ARG1, INTERFACES)[:-1], refuse(errno.ENOTTY)])
    program += bpf.when(nr["socketpair"], _pair())
    for name, argument in _ABOUT_OTHERS.items():
        program += bpf.when(nr[name], bpf.one_of(argument, [0], refuse()))
    for name, kinds in _ABOUT_MANY.items():
        program += bpf.when(nr[name], [*bpf.one_of(ARG0, kinds, refuse())[:-1], *bpf.one_of(ARG1, [0], refuse())])
    if ids is not None:
        program += _identities(nr, *ids)
    else:
        program += _closed(nr, _MODES_AND_TIMES, _DONE)
        program += bpf.when(nr["utimensat"], _times())
    program += _closed(nr, closed)
    return bpf.assemble([*program, ALLOW])


def closing_filter(arch: str = kernel.ARCH) -> bytes:
    """Returns the filter of each program: the native closing one, without messages."""
    native = seccomp.closing_filter(arch, memory_counted=False)
    return bpf.assemble([*native[:-1], *_closed(numbers(arch), _MESSAGES), ALLOW])


def _closed(nr: Mapping[str, int], names: Iterable[str], answer: int = errno.EPERM) -> list[Instruction]:
    answers = {"clone3": errno.ENOSYS, "fallocate": errno.EOPNOTSUPP}
    return [step for name in names if name in nr for step in bpf.when(nr[name], [refuse(answers.get(name, answer))])]


def _times() -> list[Instruction]:
    """Reports success likewise, but refuses the present time for a path.

    ``Path.touch`` takes success for a file that is there, and would make none.
    """
    now_of_path = bpf.unless_null(ARG1, [refuse()])
    return [*bpf.unless_null(ARG2, [refuse(_DONE)]), *now_of_path, refuse(_DONE)]


def _supervised(nr: Mapping[str, int]) -> list[Instruction]:
    """Asks the supervisor for TCP sockets that listen.

    It refuses calls that connect, and options that would change the walls of a socket.
    """
    stream = [(LOAD, 0, 0, ARG1), (AND, 0, 0, _TYPE_MASK), (JEQ, 1, 0, _STREAM), refuse(errno.EPROTONOSUPPORT)]
    internet = [*stream, *bpf.one_of(ARG2, _TCP, refuse(errno.EPROTONOSUPPORT))[:-1], supervision.ASK]
    family = [(LOAD, 0, 0, ARG0), (JEQ, 2, 0, AF_INET), (JEQ, 1, 0, AF_INET6), refuse(errno.EAFNOSUPPORT)]
    program = bpf.when(nr["socket"], [*family, *internet])
    for name in ("bind", "listen"):
        program += bpf.when(nr[name], [supervision.ASK])
    for name, flags in _FAST_OPEN.items():
        program += bpf.when(nr[name], bpf.without(flags, _MSG_FASTOPEN, refuse(errno.EOPNOTSUPP)))
    levels: list[Instruction] = [(LOAD, 0, 0, ARG1)]
    for level, names in _OPTIONS.items():
        levels += bpf.when(level, bpf.one_of(ARG2, names, refuse(errno.ENOPROTOOPT)))
    return program + bpf.when(nr["setsockopt"], [*levels, refuse(errno.ENOPROTOOPT)])


def _pair() -> list[Instruction]:
    wanted = [(JEQ, len(_PAIR_TYPES) - i, 0, kind) for i, kind in enumerate(_PAIR_TYPES)]
    return [(LOAD, 0, 0, ARG1), (AND, 0, 0, _TYPE_MASK), *wanted, refuse(errno.EPROTONOSUPPORT), ALLOW]


def _identities(nr: Mapping[str, int], first: int, count: int) -> list[Instruction]:
    """Allows only calls that name three ids of the block, whatever capability is held."""
    within = [step for argument in (ARG0, ARG1, ARG2) for step in _within(argument, first, count)]
    program: list[Instruction] = []
    for name in _SETRES:
        program += bpf.when(nr[name], [*within, ALLOW])
    for name in _IDENTITIES:
        program += bpf.when(nr[name], [refuse()])
    return program + bpf.when(nr["setgroups"], bpf.one_of(ARG0, [0], refuse()))


def _within(argument: int, first: int, count: int) -> Sequence[Instruction]:
    return ((LOAD, 0, 0, argument), (JGE, 1, 0, first), refuse(), (JGE, 0, 1, first + count), refuse())
