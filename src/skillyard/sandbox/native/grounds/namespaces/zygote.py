"""Makes the process that becomes a zygote: namespaces, root, then the interpreter by exec."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skillyard.sandbox.native.grounds import root
from skillyard.sandbox.native.grounds.host import Ids
from skillyard.sandbox.native.grounds.namespaces import directories, zygote_check
from skillyard.sandbox.native.grounds.namespaces.pid_space import PidSpace
from skillyard.sandbox.native.grounds.root import Interpreter
from skillyard.sandbox.native.groups.groups import Group
from skillyard.sandbox.native.keeper.request import Directory
from skillyard.sandbox.native.keeper.zygotes.process import Started
from skillyard.sandbox.native.linux import kernel, namespaces, seccomp

_NAMESPACES = (
    kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
)
KEEPER_FD, _ERRORS_FD = 3, 2
_DESCRIPTORS = 2048
"""The most of a zygote that imports packages."""
_UNDER_WAY = 384
"""Descriptors of one message (SCM_MAX_FD) and of messages that the keeper sends meanwhile."""


@dataclass(frozen=True, slots=True)
class ZygotePlan:
    python: Interpreter
    packages: str
    modules: tuple[str, ...]
    """To be imported ahead."""
    ids: Ids
    slots: range | None
    """Further ids that it may become; None when none are left for a zygote with packages."""
    root_dir: str
    """An existing directory to mount the new root on; seen in the zygote's mount namespace only."""
    memory_counted: bool
    """Whether a controller counts the memory of a whole sandbox."""
    compiled: bool = False
    """Whether its orders are tables for the compiled part."""
    group: str = ""
    """The ``cgroup.procs`` of where it must be to clone into the sandboxes' groups."""
    own_group: Callable[[], Group | None] = lambda: None
    """Makes a group for a zygote that runs packages' code."""
    directories: tuple[Directory, ...] = ()
    """Directories of the host that its one sandbox shows."""

    def start(self, sock: socket.socket, errors: int, modules: tuple[str, ...]) -> Started:
        """Starts a zygote that speaks on ``sock`` and writes errors to ``errors``. Raises OSError.

        With ``modules``, packages' code will run in it, and it sees its own processes and its sandboxes' only.
        """
        if self.directories and self.slots is None:
            raise OSError(0, "all user ids for sandboxes are in use")
        if not modules:
            pid, _ = _start(self, os.fork, [self.group] if self.group else [], sock, errors, ())
            return Started(pid)
        if self.slots is None:
            raise OSError(0, "all user ids for sandboxes are in use")
        space, group = PidSpace(), None
        try:
            group = self.own_group()
            joins = [self.group] if group is None else group.join_files()
            pid, mounts = _start(self, space.fork, [path for path in joins if path], sock, errors, modules)
        except OSError:
            space.abandon()
            if group is not None:
                group.remove()
            raise
        return Started(pid, space, group, mounts)


def environment(python: Interpreter) -> dict[str, str]:
    """Returns the environment variables of a sandbox, to which a run adds its own."""
    places = [os.path.dirname(python.executable), "/usr/local/bin", "/usr/bin", "/bin"]
    return {
        "PATH": ":".join(dict.fromkeys(places)),
        "HOME": "/workspace",
        "LANG": "C.UTF-8",
    }


def _start(
    plan: ZygotePlan,
    fork: Callable[[], int],
    joins: Sequence[str],
    sock: socket.socket,
    errors: int,
    modules: tuple[str, ...],
) -> tuple[int, str]:
    """Starts it; returns its pid and its mounts."""
    root.bytecode()  # here, where it is made once
    binds = root.sources(plan.python, plan.packages, memory_counted=plan.memory_counted)
    try:
        shown = directories.opened(plan.directories, _owner(plan))
    except OSError:
        for bind in binds:
            os.close(bind.fd)
        raise
    ready_r, ready_w = os.pipe2(os.O_CLOEXEC)
    mapped_r, mapped_w = os.pipe2(os.O_CLOEXEC)
    pid = fork()
    if pid == 0:
        try:
            _join(joins)
            _become(plan, _own_proc(binds) if modules else binds, shown, sock, errors, modules, ready_w, mapped_r)
        except BaseException as error:  # noqa: BLE001 - this process must end here, and say why
            os.write(errors, f"zygote: {type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(1)
    for fd in (ready_w, mapped_r, *shown, *(bind.fd for bind in binds)):
        os.close(fd)
    mounts = ""
    try:
        if os.read(ready_r, 1):
            mounts = zygote_check.read_mounts(pid)
            _map(pid, plan.ids, plan.slots)
            os.write(mapped_w, b"x")
    finally:
        os.close(ready_r)
        os.close(mapped_w)
    return pid, mounts


def _owner(plan: ZygotePlan) -> int | None:
    """Returns the one sandbox's id as the keeper counts; None where it is the keeper's own."""
    return None if plan.ids.count == 1 or not plan.slots else plan.ids.base + plan.slots.start


def _map(pid: int, ids: Ids, slots: range | None) -> None:
    """Maps its own id as :attr:`Ids.inside`, and those of its sandboxes by their numbers."""
    slots = range(1, ids.count) if slots is None else slots
    lines = [f"{ids.inside} {ids.base} 1"]
    if slots:
        lines.append(f"{slots.start} {ids.base + slots.start} {len(slots)}")
    if ids.count == 1:
        namespaces.write(f"/proc/{pid}/setgroups", "deny")
    for name in ("gid_map", "uid_map"):
        namespaces.write(f"/proc/{pid}/{name}", "\n".join(lines))


def _join(files: Sequence[str]) -> None:
    for path in files:
        namespaces.write(path, "0")


def _own_proc(binds: list[root.Bind]) -> list[root.Bind]:
    """Returns ``binds`` with the /proc of our own pid namespace in place of the keeper's."""
    namespaces.unshare("mount namespace", kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    return [*(bind for bind in binds if bind.target != "proc"), root.proc()]


def _become(
    plan: ZygotePlan,
    binds: list[root.Bind],
    shown: list[int],
    sock: socket.socket,
    errors: int,
    modules: tuple[str, ...],
    ready: int,
    mapped: int,
) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgid(0, 0)  # what it clones is in its group, and can be told from what others cloned
    _make_root(plan, binds, shown)
    # The root was made in the mount namespace before this one, which another user namespace owns: so the kernel locks
    # each mount of it, and nobody in here can make one writable, take it away or uncover what it covers.
    namespaces.unshare("user, mount, network, ipc and uts namespaces", _NAMESPACES)
    os.write(ready, b"x")
    if not os.read(mapped, 1):
        raise OSError(0, "the keeper could not map ids")
    inside = plan.ids.inside
    if plan.ids.count > 1:
        os.setgroups([])
    os.setresgid(inside, inside, inside)
    os.setresuid(inside, inside, inside)
    if inside:
        kernel.keep_capabilities()
    _exec(plan, sock, errors, modules)


def _make_root(plan: ZygotePlan, binds: list[root.Bind], shown: list[int]) -> None:
    """Makes the root, owned by the zygote's id."""
    base = plan.ids.base
    namespaces.unshare("mount namespace", kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("root", plan.root_dir, "tmpfs", flags, f"size=16m,mode=0755,uid={base},gid={base}")
    os.chdir(plan.root_dir)
    os.umask(0o022)
    kernel.set_file_ids(base, base)
    code = root.compiled_modules() if plan.compiled else ()
    root.fill(binds, plan.python, plan.packages, (*root.inside_modules(), *root.bytecode(), *code))
    directories.hang(plan.directories, shown)
    root.enter()
    kernel.set_file_ids(0, 0)


def lessen_descriptors() -> None:
    """Lowers the limit of descriptors for packages' code below the keeper's.

    It bounds the descriptors in flight, which the kernel counts by user (unix(7), ETOOMANYREFS).
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The last message may take its sender past its limit, and must not reach the keeper's.
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(max(hard - _UNDER_WAY, hard // 2), _DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def keep_only(sock: socket.socket, errors: int) -> None:
    """Keeps the keeper's socket as KEEPER_FD and ``errors`` as standard error alone."""
    null = os.open("/dev/null", os.O_RDWR)
    high = [os.dup(fd) for fd in (null, errors, sock.fileno())]
    while any(fd <= KEEPER_FD for fd in high):
        high = [os.dup(fd) if fd <= KEEPER_FD else fd for fd in high]
    os.dup2(high[0], 0)
    os.dup2(high[0], 1)
    os.dup2(high[1], _ERRORS_FD)
    os.dup2(high[2], KEEPER_FD)
    kernel.close_from(KEEPER_FD + 1)


def _exec(plan: ZygotePlan, sock: socket.socket, errors: int, modules: tuple[str, ...]) -> None:
    keep_only(sock, errors)
    if modules:
        lessen_descriptors()
    packages = plan.python.packages if plan.packages else ""
    closing = seccomp.closing_filter(memory_counted=plan.memory_counted, directories=bool(plan.directories))
    filters = [seccomp.assemble(made).hex() for made in (seccomp.large_filter(), closing)]
    shown = [[each.path, each.writable] for each in plan.directories]
    arguments = json.dumps([KEEPER_FD, packages, list(modules), *filters, shown, plan.compiled])
    name = f"python{sys.version_info.major}"
    os.execve(
        plan.python.executable,
        [name, "-I", "-S", "-B", "-c", root.START_ZYGOTE, arguments],
        environment(plan.python),
    )
