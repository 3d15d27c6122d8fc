"""Starts a landlock zygote: an id of its own, Landlock and a filter, then the interpreter by exec."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from skillyard.sandbox.native.grounds.interpreter import Interpreter
from skillyard.sandbox.native.grounds.landlock.area import Area
from skillyard.sandbox.native.grounds.landlock.filters import closing_filter, zygote_filter
from skillyard.sandbox.native.grounds.landlock.inside import walls
from skillyard.sandbox.native.grounds.landlock.inside.walls import Rule
from skillyard.sandbox.native.grounds.landlock.python import Python
from skillyard.sandbox.native.grounds.namespaces.zygote import KEEPER_FD, environment, keep_only, lessen_descriptors
from skillyard.sandbox.native.grounds.root import DEVICES, ETC, LINKS_OR_DIRECTORIES, SYSTEM_DIRECTORIES
from skillyard.sandbox.native.keeper.zygotes.process import Started
from skillyard.sandbox.native.linux import kernel, namespaces, seccomp

_OOM_SCORE = "500"
_CAP_SETGID, _CAP_SETUID, _CAP_SETPCAP = 6, 7, 8
_CAPABILITIES = 64

START = (
    "import sys, json; settings = json.loads(sys.argv[1]); sys.path.append(settings['code']);"
    f" from skillyard.sandbox.native.grounds.landlock.inside.zygote import main; main({KEEPER_FD}, settings)"
)


@dataclass(frozen=True, slots=True)
class Block:
    """Ids of one zygote and its sandboxes: its own is the first of them; count 0 where there are none to give."""

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
    """Learns the pid of each zygote."""

    def start(self, sock: socket.socket, errors: int, modules: tuple[str, ...]) -> Started:
        """Fork and exec a zygote that speaks on ``sock`` and complains on ``errors``. Raises OSError."""
        pid = os.fork()
        if pid == 0:
            try:
                _become(self, sock, errors, modules)
            except BaseException as error:  # noqa: BLE001 - this process must end here, and say why
                os.write(errors, f"zygote: {type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(1)
        self.on_start(pid)
        return Started(pid)


def _become(plan: ZygotePlan, sock: socket.socket, errors: int, modules: tuple[str, ...]) -> None:
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
    _exec(plan, packages.executable, settings, sock, errors)


def _raise_oom_score() -> None:
    """When the host runs out of memory: before anything that is not foreign."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(_OOM_SCORE)


def _be_somebody(uid: int) -> None:
    """A user of its own, who may become another of its block and hold nothing else (capabilities(7))."""
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


def _exec(plan: ZygotePlan, executable: str, settings: dict[str, object], sock: socket.socket, errors: int) -> None:
    keep_only(sock, errors)
    if settings["preload"]:
        lessen_descriptors()
    block = (plan.block.first, plan.block.count) if plan.own_ids else None
    kernel.install_filter(zygote_filter(block, plan.landlock))
    kernel.install_filter(seccomp.assemble(seccomp.large_filter()))
    variables = environment(plan.python.shown) | {"PATH": plan.python.path(executable)} | dict(plan.python.variables)
    os.execve(executable, ["python3", "-I", "-S", "-B", "-c", START, json.dumps(settings)], variables)


_PROC = (
    "cpuinfo", "meminfo", "stat", "uptime", "loadavg", "version", "filesystems", "sys/kernel/osrelease",
    "sys/kernel/pid_max", "sys/kernel/random/uuid", "sys/kernel/cap_last_cap", "sys/vm/overcommit_memory",
)  # fmt: skip
"""Figures of the machine that libraries ask for. Of processes there is nothing but what a program is itself."""

_SYS = (
    "/sys/devices/system/cpu", "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us",
)  # fmt: skip
"""Landlock hides no name: what is seen to be there, libraries open without expecting a refusal."""

_UNCOUNTED_DEVICES = frozenset({"zero"})
"""Shared mappings of it are memory that no process shows as its own."""


def coarse_rules(python: Interpreter, further: Iterable[str]) -> list[Rule]:
    """For each program: few rules, since they are made anew for each. ``further`` are our own directories."""
    return [*(Rule(path) for path in (*_directories(python), *further)), *_small()]


def exact_rules(python: Interpreter, further: Iterable[str]) -> list[Rule]:
    """For the zygote, once: the same without the packages of the host's own interpreters."""
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
    """Directories and files that together are ``top`` without what is ``masked``."""
    inner = [path for path in masked if path == top or path.startswith(f"{top}/")]
    if not inner:
        yield top
    elif top not in inner:
        for entry in os.scandir(top):
            if not entry.is_symlink():
                yield from _without(entry.path, inner)
