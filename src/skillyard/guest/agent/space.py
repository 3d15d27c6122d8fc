"""The place of an agent that root makes: namespaces, groups, a file tree, and no rights.

A process that enters stays in there for good. Needs Linux 5.12 (mount_setattr(2)).
"""

from __future__ import annotations

import fcntl
import os
from struct import pack

from .libc import Long, done, function

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable
    from typing import Any
else:
    import _socket as socket

_IPC, _NET, _UTS, _PID, _MOUNTS, _CGROUP = 1 << 27, 1 << 30, 1 << 26, 1 << 29, 1 << 17, 1 << 25
_KEPT = {"ipc": _IPC, "net": _NET, "uts": _UTS, "cgroup": _CGROUP, "mnt": _MOUNTS}
"""Namespaces that can be entered by others, by their names in /proc."""
_NOSUID, _NODEV, _NOEXEC, _BIND, _RECURSIVE, _PRIVATE = 1 << 1, 1 << 2, 1 << 3, 1 << 12, 1 << 14, 1 << 18
_DETACH = 2
_PIDFD_GETFD, _MOUNT_SETATTR = 438, 442
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_HERE, _BELOW = -100, 0x8000
READ_ONLY, NO_DEVICES, NO_PROGRAMS = 1, 4, 8
_NO_RIGHTS = 2
"""Attributes of mounts (mount_setattr(2)). Nothing in there gives rights by a bit of its file."""
_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x41
_AMBIENT, _CLEAR, _DROP, _NO_NEW_PRIVILEGES, _DUMPABLE, _VERSION, _CAPABILITIES = 47, 4, 24, 38, 4, 0x20080522, 64
_OLD = "/.machine"
"""The machine's own tree, until the new one is whole."""
_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
_SEALED = ("sys", "sysrq-trigger", "irq", "bus")
_GROUPS = "/sys/fs/cgroup"
_CONTROLLERS = {"memory": "memory", "pids": "pids", "cpus": "cpu"}
"""Controllers by the limit that is theirs."""
_SWAP = ("memory.swap.max", "memory.memsw.limit_in_bytes")
"""Limits that a kernel without swap does not have."""
_mount, _umount, _unshare, _syscall = map(function, ("mount", "umount2", "unshare", "syscall"))
_prctl, _capset, _sethostname, _setns = map(function, ("prctl", "capset", "sethostname", "setns"))


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Calls mount(2). Raises OSError."""
    words = [text.encode() or None for text in (source, target, kind)]
    done(_mount(*words, Long(flags), options.encode() or None), target)


def restrict(path: str, attributes: int, *, below: bool = True) -> None:
    """Takes rights from a mount, and from those below it. Raises OSError."""
    wanted = pack("QQQQ", attributes | _NO_RIGHTS, 0, 0, 0)
    flags = _BELOW if below else 0
    done(_syscall(_MOUNT_SETATTR, _HERE, path.encode(), flags, wanted, Long(len(wanted))), path)


def end_of(process: int, number: int) -> int:
    """Returns a descriptor of another process (pidfd_getfd(2)). Raises OSError."""
    found: int = _syscall(_PIDFD_GETFD, process, number, Long(0))
    done(min(found, 0), "pidfd_getfd")
    return found


def listening(path: str) -> socket.socket:
    """Returns an agent's socket, made outside of its sandbox. Raises OSError.

    A network lists the sockets that were made in it.
    """
    listener = socket.socket(socket.AF_UNIX)
    usual = os.umask(0o177)
    listener.bind(path)
    os.umask(usual)
    listener.listen(16)
    return listener


def leave(hostname: str) -> None:
    """Leaves the machine's namespaces; the next child is process 1 of its own. Raises OSError."""
    done(_unshare(_IPC | _NET | _UTS | _PID | _MOUNTS | _CGROUP), "unshare")
    done(_sethostname(hostname.encode(), Long(len(hostname))), "sethostname")
    lo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    fcntl.ioctl(lo, _SET_FLAGS, pack("16sH14x", b"lo", _UP))
    lo.close()


def keep(process: int, directory: str) -> None:
    """Keeps the namespaces of a process that has left those of the machine, also behind its end. Raises OSError.

    The caller is in the machine's first mount namespace: mount(2) keeps others of lower numbers alone, which Linux
    gives out by processor from 6.18 on.
    """
    for name in _KEPT:
        os.close(os.open(f"{directory}/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o400))
        mount(f"/proc/{process}/ns/{name}", f"{directory}/{name}", "", _BIND)


def enter(directory: str) -> None:
    """Enters the namespaces that :func:`keep` kept, in which nobody may be yet. Raises OSError."""
    spaces = {name: os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in _KEPT}
    for name, space in spaces.items():
        done(_setns(space, _KEPT[name]), f"setns {name}")
        os.close(space)


def begin_processes() -> None:
    """Makes the next child process 1 of a namespace. Raises OSError."""
    done(_unshare(_PID), "unshare")


def keep_only(log: str, source: int, *others: int) -> None:
    """Leaves this process its standard input and a log, and of other descriptors these."""
    said = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    for number, opened in enumerate((source, os.open(os.devnull, os.O_WRONLY), said)):
        os.dup2(opened, number)
    kept = sorted(others)
    for low, high in zip((2, *kept), (*kept, 1 << 20), strict=True):
        os.closerange(low + 1, high)


class Tree:
    """A file tree over an empty directory. Its steps are taken by :meth:`enter` and, of those behind it, :meth:`seal`.

    Sources are paths of the machine, behind :meth:`enter` real ones, and targets those of the new tree. This process
    may have ``entered`` a tree that another made.
    """

    def __init__(self, *, entered: bool = False) -> None:
        self._entered = entered
        self._steps: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def bind(self, source: str, target: str, *, writable: bool = False) -> None:
        found = source if self._entered else os.path.realpath(source)
        self._steps.append((_bind, (_OLD + found, target, 0 if writable else READ_ONLY)))

    def link(self, value: str, path: str) -> None:
        self._steps.append((_link, (value, path)))

    def empty(self, path: str) -> None:
        """Shows nothing there."""
        self._steps.append((_empty, (path,)))

    def processes(self, hidden: Iterable[str], unread: str, closed: Iterable[str]) -> None:
        """Shows ``/proc``, of the process that takes this step.

        The file ``unread`` lies over ``hidden`` files of it, and nothing is in ``closed`` directories.
        """
        self._steps.append((_proc, (list(hidden), _OLD + unread, list(closed))))

    def devices(self) -> None:
        self._steps.append((_dev, ()))

    def enter(self, top: str) -> None:
        """Makes the tree over the directory ``top``, which becomes the root. Raises OSError, ValueError."""
        os.umask(0o022)
        mount("none", "/", "", _RECURSIVE | _PRIVATE)
        mount("tmpfs", top, "tmpfs", _NOSUID | _NODEV, "mode=0755")
        os.mkdir(top + _OLD, 0o700)
        os.chdir(top)
        done(_syscall(_PIVOT_ROOT[os.uname().machine], b".", _OLD[1:].encode()), "pivot_root")
        os.chdir("/")
        self._entered = True
        self._take()

    def seal(self) -> None:
        """Makes the rest of it, and leaves the machine's tree for good. Raises OSError, ValueError."""
        self._take()
        done(_umount(_OLD.encode(), _DETACH), "umount")
        os.rmdir(_OLD)
        for path in ("/dev", "/"):
            restrict(path, READ_ONLY, below=False)

    def _take(self) -> None:
        steps, self._steps = self._steps, []
        for step, given in steps:
            step(*given)


def _bind(source: str, target: str, attributes: int) -> None:
    _place(target, directory=os.path.isdir(source))
    mount(source, target, "", _BIND | _RECURSIVE)
    restrict(target, attributes | NO_DEVICES)


def _link(value: str, path: str) -> None:
    _parent(path)
    os.symlink(value, path)


def _empty(path: str) -> None:
    _place(path, directory=True)
    mount("tmpfs", path, "tmpfs", _NOSUID | _NODEV | _NOEXEC, "mode=0755,size=4096")
    restrict(path, READ_ONLY | NO_DEVICES | NO_PROGRAMS)


def _proc(hidden: list[str], unread: str, closed: list[str]) -> None:
    os.mkdir("/proc")
    mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    for path in (f"/proc/{name}" for name in _SEALED if name not in hidden and name not in closed):
        if os.path.exists(path):
            mount(path, path, "", _BIND)
            restrict(path, READ_ONLY | NO_DEVICES | NO_PROGRAMS)
    for path in (f"/proc/{name}" for name in hidden):
        if os.path.exists(path):
            _bind(unread, path, READ_ONLY)
    for path in (f"/proc/{name}" for name in closed):
        if os.path.isdir(path):
            _empty(path)


def _dev() -> None:
    os.mkdir("/dev")
    mount("tmpfs", "/dev", "tmpfs", _NOSUID | _NOEXEC, "mode=0755,size=65536")
    for name in _NODES:
        _place(f"/dev/{name}", directory=False)
        mount(f"{_OLD}/dev/{name}", f"/dev/{name}", "", _BIND)
        restrict(f"/dev/{name}", NO_PROGRAMS)
    for name, value in _LINKS.items():
        os.symlink(value, f"/dev/{name}")
    _empty("/dev/pts")


def _place(path: str, *, directory: bool) -> None:
    """Makes what is mounted over. Raises ValueError where content that is shown leads elsewhere."""
    _parent(path)
    if os.path.realpath(path) != path:
        raise ValueError(f"{path} leads elsewhere in the sandbox")
    if directory:
        os.makedirs(path, exist_ok=True)
    elif not os.path.exists(path):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444))


def _parent(path: str) -> None:
    parent = os.path.dirname(path)
    if os.path.realpath(parent) != parent:
        raise ValueError(f"{path} leads elsewhere in the sandbox")
    os.makedirs(parent, exist_ok=True)


def become(uid: int) -> None:
    """Turns this process into one of a user, without any right and without a way back. Raises OSError."""
    for capability in range(_CAPABILITIES):
        if _prctl(_DROP, Long(capability), 0, 0, 0) != 0:
            break  # the kernel has no more of them
    done(_prctl(_AMBIENT, Long(_CLEAR), 0, 0, 0), "ambient capabilities")
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    head, nothing = pack("Ii", _VERSION, 0), pack("6I", *[0] * 6)
    done(_capset(head, nothing), "capset")
    done(_prctl(_NO_NEW_PRIVILEGES, Long(1), 0, 0, 0), "no_new_privs")
    # Nobody else is in here yet. The agent opens files of its own in /proc, and closes itself then.
    done(_prctl(_DUMPABLE, Long(1), 0, 0, 0), "dumpable")


def make_groups() -> dict[str, str]:
    """Makes control groups without limits; returns them by the limit that each may have."""
    found: dict[str, str] = {}
    for name, controller in _CONTROLLERS.items():
        group = f"{_GROUPS}/{controller}/skillyard"
        if _one_tree():
            group = f"{_GROUPS}/skillyard"
            if not _written(f"{_GROUPS}/cgroup.subtree_control", f"+{controller}"):
                continue
        try:
            os.makedirs(group, exist_ok=True)
        except OSError:
            continue
        found[name] = group
    return found


def join_groups(groups: dict[str, str]) -> None:
    """Makes this process a member of control groups. Raises OSError."""
    for group in sorted(set(groups.values())):
        # One thread joins a group of version 1 so without a lock of all processes.
        with open(f"{group}/tasks" if not _one_tree() else f"{group}/cgroup.procs", "w", encoding="ascii") as file:
            file.write("0")


def _one_tree() -> bool:
    """Returns whether control groups are of version 2."""
    return os.path.exists(f"{_GROUPS}/cgroup.controllers")


def limit_groups(groups: dict[str, str], wanted: dict[str, Any]) -> list[str]:
    """Gives control groups their limits; returns the names of those that took theirs."""
    memory, pids, share = wanted["memory"], wanted["pids"], int(wanted["cpus"] * 100_000)
    values: dict[str, dict[str, object]] = {
        "memory": {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory},
        "pids": {"pids.max": pids},
        "cpus": {"cpu.cfs_period_us": 100_000, "cpu.cfs_quota_us": share},
    }
    if _one_tree():
        values["memory"] = {"memory.max": memory, "memory.swap.max": 0, "memory.oom.group": 0}
        values["cpus"] = {"cpu.max": f"{share} 100000"}
    return [
        name
        for name, group in groups.items()
        if all(_written(f"{group}/{key}", value) or key in _SWAP for key, value in values[name].items())
    ]


def _written(file: str, value: object) -> bool:
    try:
        with open(file, "w", encoding="utf-8") as opened:
            opened.write(str(value))
    except OSError:
        return False
    return True
