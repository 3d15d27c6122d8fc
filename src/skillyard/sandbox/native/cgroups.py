"""Control groups, version 2 or 1, as the host mounts them (cgroups(7)): one group a sandbox, used once.

Version 1 joins by a write of ``0`` to ``tasks`` from inside, which needs no global lock; version 2 is cloned into.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from skillyard.sandbox.native import group_parents

_PERIOD_US = 100_000
_NEEDED = ("memory", "pids", "cpu")
_WEIGHTS = {1: ("cpu.shares", 1024, 2), 2: ("cpu.weight", 100, 1)}
"""File, what a fresh group has, the least."""
_UNBOUND: Mapping[int, Callable[[str], tuple[str, str]]] = {
    1: lambda path: (f"{path}/cpu.cfs_quota_us", "-1"),
    2: lambda path: (f"{path}/cpu.max", "max"),
}
_COUNTERS = {
    1: ("memory.oom_control", "memory.max_usage_in_bytes", "pids.events"),
    2: ("memory.events", "memory.peak", "pids.events"),
}


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
    _open: dict[str, int] = field(default_factory=dict)

    def join_descriptors(self) -> list[int]:
        """Version 1: one ``tasks`` file a hierarchy. Version 2: the directory, for CLONE_INTO_CGROUP."""
        if self.version == 2:
            return [os.open(self.directories[""], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        return [os.open(f"{path}/tasks", os.O_WRONLY | os.O_CLOEXEC) for path in _distinct(self.directories)]

    def open_counters(self) -> None:
        """Ahead of the run, so that reading them at its end costs little."""
        for name in _COUNTERS[self.version]:
            path = f"{self._path(name.partition('.')[0])}/{name}"
            with contextlib.suppress(FileNotFoundError):  # memory.peak is younger than the rest
                self._open[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def oom_kills(self) -> int:
        return self._counter("memory.events" if self.version == 2 else "memory.oom_control", "oom_kill")

    def refused_forks(self) -> int:
        return self._counter("pids.events", "max")

    def processes(self) -> int:
        """Processes and threads that are in it now."""
        text = _read(f"{self._path('pids')}/pids.current").strip()
        return int(text) if text.isdigit() else 0

    def hurry(self) -> None:
        """Let those that were told to end do so without a quota: what they still have to do is little, and others
        wait for the locks that they hold."""
        with contextlib.suppress(OSError):
            if path := self._path("cpu"):
                write(*_UNBOUND[self.version](path))

    def own_memory(self) -> int:
        """Bytes of anonymous memory: what is held besides the files of the tmpfs and the page cache."""
        key = "anon" if self.version == 2 else "total_rss"
        return _counter(_read(f"{self._path('memory')}/memory.stat"), key)

    def weigh(self, level: int) -> bool:
        """Weigh 2**-level of a fresh group's weight against the others; False where nobody counts processors."""
        path = self._path("cpu")
        if path is None:
            return False
        name, whole, least = _WEIGHTS[self.version]
        write(f"{path}/{name}", str(max(least, whole >> level)))
        return True

    def peak_memory(self) -> int | None:
        text = self._text("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes").strip()
        return int(text) if text.isdigit() else None

    def _counter(self, name: str, key: str) -> int:
        return _counter(self._text(name), key)

    def _text(self, name: str) -> str:
        fd = self._open.get(name)
        return "" if fd is None else os.pread(fd, 4096, 0).decode("ascii", "replace")

    def remove(self) -> bool:
        """Whether it is gone; a group may stay busy for a moment after its last process."""
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()
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
    """Where this keeper makes its groups. ``missing`` says why a controller cannot be had."""

    version: int = 0
    parents: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    claims: dict[str, int] = field(default_factory=dict)
    """Parents and the descriptors that own them."""
    cloner: int | None = None
    """Whose processes are cloned into the groups (version 2), where that is not ourselves."""

    def has(self, controller: str) -> bool:
        return controller in self.parents

    def make(self, name: str, limits: GroupLimits) -> Group:
        """A fresh group with its limits set. On failure nothing is left."""
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
        """All sandboxes together weigh half of what one process of the server does, when both want to work."""
        path = self.parents.get("cpu")
        if path is not None:
            name, whole, _ = _WEIGHTS[self.version]
            with contextlib.suppress(OSError):
                write(f"{path}/{name}", str(whole // 2))

    def let_clone(self, uid: int) -> str:
        """Have a process of this user, once it is in the group whose ``cgroup.procs`` this gives, clone into ours.

        Version 2 looks for the right to write at the new group and at the nearest one above it and the cloner's own
        (cgroups(7), CLONE_INTO_CGROUP in clone(2)). Empty for version 1, where nobody is cloned into a group.
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
        """Remove the groups that nobody is in: below our parents, and of dead keepers beside them. Those of the
        former that are left, since a killed keeper's processes take a moment to end."""
        parents = _distinct(self.parents)
        group_parents.sweep_dead(dict.fromkeys(map(os.path.dirname, parents)))
        return group_parents.remove(path for parent in parents for path in group_parents.children(parent))

    def close(self) -> None:
        """Remove the parents; busy ones stay for the next keeper's sweep."""
        for path in _distinct(self.parents):
            with contextlib.suppress(OSError):
                os.rmdir(path)
        while self.claims:
            os.close(self.claims.popitem()[1])

    def claim(self, path: str) -> str:
        """Make and own a parent. Raises OSError."""
        if path not in self.claims:
            self.claims[path] = group_parents.claim(path)
        return path


def _limits_v1(limits: GroupLimits) -> Sequence[tuple[str, str, str]]:
    memory = str(limits.memory_bytes)
    return (
        ("memory", "memory.limit_in_bytes", memory),
        ("memory", "memory.memsw.limit_in_bytes", "?" + memory),
        ("memory", "memory.swappiness", "?0"),
        ("pids", "pids.max", str(limits.pids)),
        ("cpu", "cpu.cfs_period_us", str(_PERIOD_US)),
        ("cpu", "cpu.cfs_quota_us", str(int(limits.cpus * _PERIOD_US))),
    )


def _limits_v2(limits: GroupLimits) -> Sequence[tuple[str, str, str]]:
    return (
        ("memory", "memory.max", str(limits.memory_bytes)),
        ("memory", "memory.swap.max", "?0"),
        ("pids", "pids.max", str(limits.pids)),
        ("cpu", "cpu.max", f"{int(limits.cpus * _PERIOD_US)} {_PERIOD_US}"),
    )


def find(name: str) -> Cgroups:
    """The hierarchies of this host in which we may make the group ``name`` for our sandboxes' groups."""
    mounts, unified = mounted()
    own = own_paths()
    if unified and "memory" in words(f"{unified}/cgroup.controllers"):
        return _find_v2(unified, own.get("", "/"), name)
    found = Cgroups(version=1)
    for controller in _NEEDED:
        if controller not in mounts:
            found.missing[controller] = "the host mounts no such controller"
            continue
        try:
            found.parents[controller] = found.claim(_parent(mounts[controller], own.get(controller, "/"), name))
        except OSError as error:
            found.missing[controller] = f"cannot make a group: {error.strerror}"
    return found


def _parent(mount: str, own: str, name: str) -> str:
    base = f"{mount}{own}".rstrip("/")
    return f"{base if os.path.isdir(base) else mount}/{name}"


def _find_v2(mount: str, own: str, name: str) -> Cgroups:
    """The nearest group above ours that we may write and that hands down what we need.

    A group with processes of its own cannot hand controllers down (the no-internal-process rule), so it is most
    often an ancestor: the root for root, the user's delegated slice for an ordinary user.
    """
    at = own
    why = "no group above ours may be written"
    while True:
        base = f"{mount}{at}".rstrip("/") or mount
        if os.access(base, os.W_OK):
            try:
                return _claim_v2(base, name)
            except OSError as error:
                why = f"{base}: {_explained(error)}"
        if at in ("/", ""):
            return Cgroups(version=2, missing=dict.fromkeys(_NEEDED, why))
        at = os.path.dirname(at)


def _explained(error: OSError) -> str:
    if error.errno == errno.EBUSY:
        return "it has processes of its own, and so hands no controllers down"
    return error.strerror or str(error)


def _claim_v2(base: str, name: str) -> Cgroups:
    """With those controllers that ``base`` has; memory must be one of them."""
    had = [each for each in _NEEDED if each in words(f"{base}/cgroup.controllers")]
    if "memory" not in had:
        raise OSError(0, "the memory controller is not handed down to it")
    _hand_down(base, had)
    found = Cgroups(version=2)
    found.parents = dict.fromkeys(had, found.claim(f"{base}/{name}"))
    found.missing = {each: f"it is not handed down to {base}" for each in _NEEDED if each not in had}
    try:
        _hand_down(found.parents["memory"], had)
    except OSError:
        found.close()
        raise
    return found


def _hand_down(path: str, controllers: Sequence[str]) -> None:
    wanted = set(controllers) - set(words(f"{path}/cgroup.subtree_control"))
    if wanted:
        write(f"{path}/cgroup.subtree_control", " ".join(f"+{controller}" for controller in sorted(wanted)))


def mounted() -> tuple[dict[str, str], str | None]:
    """Version 1 mount points by controller, and the version 2 mount point (proc_pid_mountinfo(5))."""
    controllers: dict[str, str] = {}
    unified: str | None = None
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            kind, _, options = [*right.split(), "", "", ""][:3]
            target = left.split()[4]
            if kind == "cgroup2":
                unified = unified or target
            elif kind == "cgroup":
                controllers.update({name: target for name in options.split(",") if name in _NEEDED})
    return controllers, unified


def own_paths() -> Mapping[str, str]:
    """Controller (``""`` for version 2) → our own group."""
    own: dict[str, str] = {}
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            own.update(dict.fromkeys(controllers.split(","), path))
    return own


def _distinct(directories: Mapping[str, str]) -> list[str]:
    return list(dict.fromkeys(directories.values()))


def write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def words(path: str) -> list[str]:
    return _read(path).split()


def _counter(text: str, key: str) -> int:
    """The number behind ``key`` in lines of a key and a number."""
    words = text.split()
    return next((int(words[i + 1]) for i in range(0, len(words) - 1, 2) if words[i] == key), 0)
