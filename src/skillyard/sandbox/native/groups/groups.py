"""Control groups, version 2 or 1, as the host mounts them: one a sandbox.

A process joins a group of version 1 by a write of ``0`` to ``tasks``, which needs no global lock, and is cloned into
one of version 2. A lock on the directory of a keeper's groups (flock(2)) ends with the keeper. The groups of a killed
keeper are empty, since its processes ended with it: the next keeper beside it removes them, and the next keeper of its
run directory, which may be elsewhere in the hierarchy. Directories are 0700, so that nobody else can hold a lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_NAME = re.compile(r"skillyard-[0-9a-f]{12}")
_NOTE = "groups"
_LOOK_AGAIN_S = 0.01
_LOCK_BOUND_S = 2.0
"""A sweep holds a lock for microseconds; a keeper that never gets it goes on without."""


def claim(path: str) -> int:
    """Makes a directory unless it is there, and owns it while the descriptor is open.

    Raises OSError.
    """
    deadline = time.monotonic() + _LOCK_BOUND_S
    while True:
        os.makedirs(path, 0o700, exist_ok=True)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if (_lock(fd) and _is(fd, path)) or time.monotonic() > deadline:
            return fd
        os.close(fd)
        time.sleep(_LOOK_AGAIN_S)


def sweep_dead(bases: Iterable[str]) -> None:
    """Removes the groups of dead keepers directly below ``bases``; ours are locked."""
    for base in bases:
        with contextlib.suppress(OSError), os.scandir(base) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    _remove_if_dead(entry.path)


def note(run_dir: str, parents: Iterable[str]) -> None:
    """Notes the parents of a keeper's groups for those who clear away after it."""
    with open(f"{run_dir}/{_NOTE}", "w", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(f"{path}\n" for path in parents)


def sweep_noted(run_dir: str) -> list[str]:
    """Removes the groups that the dead keeper of ``run_dir`` noted, wherever they are. Returns those that are left."""
    try:
        with open(f"{run_dir}/{_NOTE}", encoding="utf-8", errors="surrogateescape") as file:
            noted = [path for path in file.read().splitlines() if _NAME.fullmatch(os.path.basename(path))]
    except OSError:
        return []
    for path in noted:
        _remove_if_dead(path)
    return [path for path in noted if os.path.isdir(path)]


def children(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def remove(paths: Iterable[str]) -> list[str]:
    """Removes groups; returns those in which processes are left, perhaps ending ones."""
    return [path for path in paths if not _removed(path)]


def _removed(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _remove_if_dead(path: str) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _lock(fd):
                remove(children(path))
                os.rmdir(path)
        finally:
            os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is(fd: int, path: str) -> bool:
    """Returns whether no sweep removed it between our making and our locking it."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def read(path: str) -> str:
    """Returns a small file's text; nothing when it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    text = b""
    try:
        while piece := os.read(fd, 1 << 16):
            text += piece
    except OSError:
        return ""
    finally:
        os.close(fd)
    return text.decode("ascii", "replace")


def _read_number(path: str) -> int:
    """Reads a file with one number. Raises OSError, ValueError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(fd, 64))
    finally:
        os.close(fd)


def words(path: str) -> list[str]:
    return read(path).split()


def counter(text: str, key: str) -> int:
    """Returns the number behind ``key`` in lines of a key and a number."""
    _, found, rest = f"\n{text}".partition(f"\n{key} ")
    return int(rest.partition("\n")[0]) if found else 0


PERIOD_US = 100_000
_WEIGHTS = {1: ("cpu.shares", 1024, 2), 2: ("cpu.weight", 100, 1)}
"""By version: the file, the weight of a fresh group, and the least weight."""
_UNBOUND: Mapping[int, Callable[[str], tuple[str, str]]] = {
    1: lambda path: (f"{path}/cpu.cfs_quota_us", "-1"),
    2: lambda path: (f"{path}/cpu.max", "max"),
}
_LEFT_AT_MOST = 2 << 20
"""Bytes that may be charged to a group when it is used again: pages of libraries that its sandbox read first."""
_COUNTERS = {
    1: ("memory.oom_control", "memory.max_usage_in_bytes", "pids.events", "pids.peak"),
    2: ("memory.events", "memory.peak", "pids.events", "pids.peak"),
}
_PEAKS = frozenset({"memory.max_usage_in_bytes", "memory.peak"})


@dataclass(frozen=True, slots=True)
class GroupLimits:
    memory_bytes: int
    pids: int
    cpus: float


@dataclass(slots=True)
class Group:
    """One sandbox's group: ``directories`` by controller (version 1) or under ``""`` (version 2)."""

    version: int
    directories: dict[str, str]
    level: int = 0
    """Its weight, as :meth:`weigh` sets it."""
    _open: dict[str, int] = field(default_factory=dict)
    _hurried: bool = False
    _joins: list[int] | None = None
    """Those of :meth:`join_descriptors`, kept once it serves a second sandbox; a third may come."""

    def join_descriptors(self) -> list[int]:
        """Opens one ``tasks`` file a hierarchy (version 1) or the directory to clone into.

        :meth:`joined` takes them back.
        """
        if self._joins:
            return list(self._joins)
        if self.version == 2:
            found = [os.open(self.directories[""], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        else:
            found = [os.open(f"{path}/tasks", os.O_WRONLY | os.O_CLOEXEC) for path in _distinct(self.directories)]
        if self._joins is not None:
            self._joins = list(found)
        return found

    def joined(self, descriptors: list[int]) -> None:
        """Closes them, unless they are kept."""
        if not self._joins:
            for fd in descriptors:
                os.close(fd)

    def hierarchies(self) -> int:
        """Returns the number of directories that a process joins."""
        return len(_distinct(self.directories))

    def join_files(self) -> list[str]:
        """Returns the files to which a process writes ``0`` to become a member."""
        name = "cgroup.procs" if self.version == 2 else "tasks"
        return [f"{path}/{name}" for path in _distinct(self.directories)]

    def members(self) -> list[set[int]]:
        """Returns the members by controller."""
        return [{int(word) for word in read(path).split()} for path in self.join_files()]

    def open_counters(self) -> None:
        """Opens them and the weight's file ahead of the run, so that using them costs little."""
        if path := self._path("cpu"):
            name = _WEIGHTS[self.version][0]
            with contextlib.suppress(FileNotFoundError):
                self._open[name] = os.open(f"{path}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        for name in _COUNTERS[self.version]:
            path = f"{self._path(name.partition('.')[0])}/{name}"
            with contextlib.suppress(FileNotFoundError):  # the peaks are younger than the rest
                reset = name in _PEAKS and os.stat(path).st_mode & 0o200
                self._open[name] = os.open(path, (os.O_RDWR if reset else os.O_RDONLY) | os.O_CLOEXEC)

    def close_counters(self) -> None:
        """Closes them; they count nothing from then on."""
        for fd in (*self._open.values(), *(self._joins or ())):
            os.close(fd)
        self._open.clear()
        self._joins = None

    def oom_kills(self) -> int:
        return self._counter("memory.events" if self.version == 2 else "memory.oom_control", "oom_kill")

    def refused_forks(self) -> int:
        return self._counter("pids.events", "max")

    def most_processes(self) -> int | None:
        """Returns the most processes and threads that it ever held; None where nobody counts."""
        text = self._text("pids.peak").strip()
        return int(text) if text.isdigit() else None

    def processes(self) -> int:
        """Returns the number of processes and threads that are in it now."""
        text = read(f"{self._path('pids')}/pids.current").strip()
        return int(text) if text.isdigit() else 0

    def leaders(self) -> list[int]:
        """Returns the processes that are in it now, each by its first thread."""
        return [int(word) for word in words(f"{next(iter(self.directories.values()))}/cgroup.procs")]

    def hurry(self) -> None:
        """Lets processes that were told to end do so without a quota: others wait for their locks."""
        self._hurried = True
        with contextlib.suppress(OSError):
            if path := self._path("cpu"):
                write(*_UNBOUND[self.version](path))

    def counts_memory(self) -> bool:
        return self._path("memory") is not None

    def own_memory(self) -> int:
        """Returns bytes of anonymous memory and of sockets, without the tmpfs and the page cache."""
        path = self._path("memory")
        told = read(f"{path}/memory.stat")
        if self.version == 2:
            return counter(told, "anon") + counter(told, "sock")
        sockets = read(f"{path}/memory.kmem.tcp.usage_in_bytes").strip()
        return counter(told, "total_rss") + int(sockets or 0)

    def weigh(self, level: int) -> bool:
        """Sets 2**-level of a fresh group's weight; returns whether a controller counts."""
        name, whole, least = _WEIGHTS[self.version]
        if name not in self._open:
            return False
        if level != self.level:
            os.pwrite(self._open[name], str(max(least, whole >> level)).encode(), 0)
            self.level = level
        return True

    def is_clean(self) -> bool:
        """Returns whether nothing of its sandbox is left but its weight and the peaks.

        No process is in it, the kernel refused and ended nothing, no quota was lifted, and next to nothing is charged.
        """
        if self._hurried or self.oom_kills() or self.refused_forks():
            return False
        try:
            return self._empty() and (not self.counts_memory() or self._charged() <= _LEFT_AT_MOST)
        except (OSError, ValueError):
            return False

    def renew(self) -> bool:
        """Makes a clean one as it was before its sandbox; returns whether it could."""
        self._joins = self._joins or []
        try:
            self.weigh(0)
            for name in _PEAKS & self._open.keys():
                os.pwrite(self._open[name], b"0", 0)  # memory.peak can be reset from Linux 6.12 on
        except OSError:
            return False
        return True

    def _empty(self) -> bool:
        """Returns whether no process is in it. One that joined a hierarchy joined them all. Raises OSError."""
        path = self._path("pids")
        if path is not None:
            with contextlib.suppress(FileNotFoundError, ValueError):
                return _read_number(f"{path}/pids.current") == 0
        return all(map(os.path.isdir, self.directories.values())) and not any(self.members())

    def _charged(self) -> int:
        path = self._path("memory")
        if self.version == 2:
            return _read_number(f"{path}/memory.current")
        charged = _read_number(f"{path}/memory.usage_in_bytes")
        with contextlib.suppress(FileNotFoundError):
            # Connections live on where their program has ended, while the other end does not answer.
            charged += _read_number(f"{path}/memory.kmem.tcp.usage_in_bytes")
        return charged

    def peak_memory(self) -> int | None:
        text = self._text("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes").strip()
        return int(text) if text.isdigit() else None

    def _counter(self, name: str, key: str) -> int:
        return counter(self._text(name), key)

    def _text(self, name: str) -> str:
        fd = self._open.get(name)
        return "" if fd is None else os.pread(fd, 4096, 0).decode("ascii", "replace")

    def remove(self) -> bool:
        """Removes it; returns whether it is gone, since it may stay busy for a moment."""
        self.close_counters()
        gone = True
        for path in _distinct(self.directories):
            try:
                os.rmdir(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                gone = False
        return gone

    def _path(self, controller: str) -> str | None:
        return self.directories.get("" if self.version == 2 else controller)


@dataclass(slots=True)
class Cgroups:
    """The parents of this keeper's groups. ``missing`` has the reasons for missing controllers."""

    version: int = 0
    parents: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    claims: dict[str, int] = field(default_factory=dict)
    """Parents and the descriptors that own them."""
    cloner: int | None = None
    """The user of the process that clones into the groups (version 2), where it has another than we."""

    def has(self, controller: str) -> bool:
        return controller in self.parents

    def make(self, name: str, limits: GroupLimits) -> Group:
        """Makes a group with its limits. On failure nothing is left."""
        if self.version == 2:
            directories = {"": f"{self.parents['memory']}/{name}"}
        else:
            directories = {controller: f"{path}/{name}" for controller, path in self.parents.items()}
        group = Group(self.version, directories)
        try:
            for path in _distinct(directories):
                os.mkdir(path, 0o755)
                self._open_to_cloner(path)
            self._limit(group, limits)
            group.open_counters()
        except OSError:
            group.remove()
            raise
        return group

    def _limit(self, group: Group, limits: GroupLimits) -> None:
        writes = _limits_v2(limits) if self.version == 2 else _limits_v1(limits)
        for controller, name, value in writes:
            path = group.directories.get("" if self.version == 2 else controller)
            if path and self.has(controller) and (value[0] != "?" or os.path.exists(f"{path}/{name}")):
                write(f"{path}/{name}", value.lstrip("?"))

    def stand_back(self) -> None:
        """Gives all sandboxes together half the weight of one process of the server."""
        path = self.parents.get("cpu")
        if path is not None:
            name, whole, _ = _WEIGHTS[self.version]
            with contextlib.suppress(OSError):
                write(f"{path}/{name}", str(whole // 2))

    def let_clone(self, uid: int) -> str:
        """Lets a user clone into our groups from the group whose ``cgroup.procs`` it returns.

        Version 2 looks for the right to write at the new group and at the nearest one above it and the cloner's own
        (cgroups(7), CLONE_INTO_CGROUP in clone(2)). The path is empty for version 1, which does not clone into groups.
        """
        if self.version != 2 or not self.parents:
            return ""
        self.cloner = None if uid == os.geteuid() else uid
        leaf = f"{self.parents['memory']}/zygotes"
        os.makedirs(leaf, 0o755, exist_ok=True)
        self._open_to_cloner(self.parents["memory"])
        return f"{leaf}/cgroup.procs"

    def _open_to_cloner(self, path: str) -> None:
        if self.cloner is not None:
            os.chown(f"{path}/cgroup.procs", self.cloner, -1)

    def sweep(self) -> list[str]:
        """Removes groups without processes below our parents, and those of dead keepers beside them.

        Returns groups below our parents that are left: the processes of a killed keeper take a moment to end.
        """
        parents = _distinct(self.parents)
        sweep_dead(dict.fromkeys(map(os.path.dirname, parents)))
        return remove(path for parent in parents for path in children(parent))

    def close(self) -> None:
        """Removes the parents; busy ones stay for the next keeper's sweep."""
        for path in _distinct(self.parents):
            with contextlib.suppress(OSError):
                os.rmdir(path)
        while self.claims:
            os.close(self.claims.popitem()[1])

    def claim(self, path: str) -> str:
        """Makes and owns a parent. Raises OSError."""
        if path not in self.claims:
            self.claims[path] = claim(path)
        return path


def _limits_v1(limits: GroupLimits) -> Sequence[tuple[str, str, str]]:
    memory = str(limits.memory_bytes)
    return (
        ("memory", "memory.limit_in_bytes", memory),
        ("memory", "memory.memsw.limit_in_bytes", "?" + memory),
        ("memory", "memory.swappiness", "?0"),
        ("memory", "memory.kmem.tcp.limit_in_bytes", "?" + memory),  # else nobody counts the queues of TCP and UDP
        ("pids", "pids.max", str(limits.pids)),
        ("cpu", "cpu.cfs_period_us", str(PERIOD_US)),
        ("cpu", "cpu.cfs_quota_us", str(int(limits.cpus * PERIOD_US))),
    )


def _limits_v2(limits: GroupLimits) -> Sequence[tuple[str, str, str]]:
    return (
        ("memory", "memory.max", str(limits.memory_bytes)),
        ("memory", "memory.swap.max", "?0"),
        ("pids", "pids.max", str(limits.pids)),
        ("cpu", "cpu.max", f"{int(limits.cpus * PERIOD_US)} {PERIOD_US}"),
    )


def _distinct(directories: Mapping[str, str]) -> list[str]:
    return list(dict.fromkeys(directories.values()))
