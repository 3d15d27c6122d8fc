"""What one data directory has on this host: processes, mounts, control groups, files. Those of others do not count."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import Pause, until

__all__ = ["Footprint", "Process", "Snapshot", "gone", "idle", "until"]

KEEPER = "skillyard.sandbox.native.grounds.namespaces.ground"
GATE = "skillyard.gate.process"
_NS_GET_PARENT = 0xB702
"""ioctl_ns(2): the namespace around this one."""
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Process:
    """``depth`` counts the pid namespaces it has a number in: 1 the host's, 2 a keeper's, 3 a sandbox's."""

    pid: int
    started: int
    parent: int
    depth: int
    state: str
    command: str

    def __str__(self) -> str:
        return (
            f"process {self.pid} (parent {self.parent}, state {self.state}, depth {self.depth}): {self.command[:120]}"
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    processes: tuple[Process, ...]
    mounts: tuple[str, ...]
    cgroups: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def sandboxed(self) -> tuple[Process, ...]:
        """Those inside sandboxes: inits, workers and whatever they started."""
        return tuple(process for process in self.processes if process.depth > 2)

    @property
    def zombies(self) -> tuple[Process, ...]:
        return tuple(process for process in self.processes if process.state == "Z")

    @property
    def groups_of_sandboxes(self) -> tuple[str, ...]:
        """Without the keeper's own groups that they lie in."""
        return tuple(path for path in self.cgroups if not Path(path).name.startswith("skillyard-"))

    def lines(self) -> list[str]:
        """One line a thing."""
        return [
            *map(str, self.processes),
            *(f"mount {line}" for line in self.mounts),
            *(f"control group {path}" for path in self.cgroups),
            *(f"file {path}" for path in self.files),
        ]


class Footprint:
    """What belongs to the server and the keeper of ``data_dir``, found by walking /proc and /sys.

    A keeper's pid namespace and its descendants are learnt by looking while it lives; what is left of them later is
    its leftover. An ordinary user may see the latter only.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._run_dir = str((data_dir / "run").resolve())
        self._group = "skillyard-" + hashlib.sha256(self._run_dir.encode()).hexdigest()[:12]
        self._namespaces: dict[int, int] = {}
        """Inodes, and descriptors that keep the kernel from giving the numbers to others."""
        self._seen: set[tuple[int, int]] = set()

    def keepers(self) -> list[int]:
        """Pids, launchers that are about to end excluded."""
        return self._keepers(_all())

    def _keepers(self, every: list[Process]) -> list[int]:
        marker = json.dumps(self._run_dir)
        return [p.pid for p in every if KEEPER in p.command and marker in p.command and p.depth > 1]

    def kill_keeper(self) -> None:
        """kill -9, with everything it held remembered as its own."""
        self.glance()
        for pid in self.keepers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_gates(self) -> int:
        """kill -9; returns how many there were."""
        gates = [process for process in self.glance().processes if GATE in process.command and process.state != "Z"]
        for process in gates:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        return len(gates)

    def look(self) -> Snapshot:
        return Snapshot(self._processes(), tuple(self._mounts()), tuple(self._cgroups()), tuple(self._files()))

    def glance(self) -> Snapshot:
        """The processes alone, which is quicker."""
        return Snapshot(self._processes(), (), (), ())

    def _processes(self) -> tuple[Process, ...]:
        every = _all()
        keepers = self._keepers(every)
        for pid in keepers:
            with suppress(OSError):
                self._remember(os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC))
        self._seen.update((p.pid, p.started) for p in _tree(every, keepers))
        return tuple(p for p in every if (self._is_server(p) or self._is_kept(p)) and not _left_to_init(p))

    def _remember(self, namespace: int) -> None:
        inode = os.fstat(namespace).st_ino
        if inode in self._namespaces:
            os.close(namespace)
        else:
            self._namespaces[inode] = namespace

    def __del__(self) -> None:
        for namespace in self._namespaces.values():
            os.close(namespace)

    def _is_server(self, process: Process) -> bool:
        """Whatever names the directory on its command line, ourselves excepted."""
        return str(self._data_dir) in process.command and process.pid != os.getpid()

    def _is_kept(self, process: Process) -> bool:
        if (process.pid, process.started) in self._seen:
            return True
        return process.depth > 1 and bool(self._namespaces.keys() & _pid_namespaces(process.pid))

    def _mounts(self) -> Iterator[str]:
        seen: set[str] = set()
        for process in _all():
            with suppress(OSError):
                namespace = os.readlink(f"/proc/{process.pid}/ns/mnt")
                if namespace not in seen:
                    seen.add(namespace)
                    text = _read(f"/proc/{process.pid}/mountinfo").decode()
                    if self._run_dir in text:
                        yield from (line for line in text.splitlines() if self._run_dir in line)

    def _cgroups(self) -> Iterator[str]:
        for at, directories, _ in os.walk(_CGROUPS):
            parts = at.split("/")
            if self._group in parts:
                yield at
            elif parts[-1].startswith("skillyard-"):
                directories.clear()

    def _files(self) -> Iterator[str]:
        """Below the directories whose content is on its way somewhere."""
        for name in ("run/spool", "run/root", "blobs/tmp"):
            yield from (str(path) for path in sorted((self._data_dir / name).rglob("*")))


def gone(footprint: Footprint, seconds: float = 10.0) -> None:
    """Wait until nothing is left. Raises AssertionError naming each thing that is."""
    pause, deadline = Pause(), time.monotonic() + seconds
    while footprint.glance().processes or footprint.look().lines():
        late = time.monotonic() > deadline
        left = footprint.look().lines() if late else []
        assert not left, f"left after {seconds} s:\n" + "\n".join(left)
        pause()


def idle(footprint: Footprint, seconds: float = 10.0, *, ahead: bool = False) -> None:
    """Wait until the server holds no sandbox: no process, mount, group or file of one, and no dead child that
    nobody asked after. With ``ahead``, sandboxes that wait to be used may be there: an init and a worker each."""
    pause, deadline = Pause(), time.monotonic() + seconds
    while _of_sandboxes(footprint.glance(), ahead).lines() or _of_sandboxes(footprint.look(), ahead).lines():
        late = time.monotonic() > deadline
        left = _of_sandboxes(footprint.look(), ahead).lines() if late else []
        assert not left, f"of sandboxes, after {seconds} s:\n" + "\n".join(left)
        pause()


def _of_sandboxes(now: Snapshot, ahead: bool) -> Snapshot:
    inside, groups = now.sandboxed, now.groups_of_sandboxes
    if ahead:
        inits = {process.pid for process in inside if process.parent not in {p.pid for p in inside}}
        workers = {process.parent: process for process in inside if process.parent in inits}
        waiting = inits.union(process.pid for process in workers.values())
        inside, groups = tuple(process for process in inside if process.pid not in waiting), ()
    return Snapshot(tuple(dict.fromkeys(inside + now.zombies)), now.mounts, groups, now.files)


def _tree(every: list[Process], roots: list[int]) -> list[Process]:
    """The processes ``roots`` and all below them."""
    below: dict[int, list[Process]] = {}
    for process in every:
        below.setdefault(process.parent, []).append(process)
    found = [process for process in every if process.pid in roots]
    for process in found:
        found.extend(below.get(process.pid, ()))
    return found


def _left_to_init(process: Process) -> bool:
    """It has ended, and the host's init, whose child it has become, will take note of it when it pleases."""
    return process.state == "Z" and process.parent == 1


def _all() -> list[Process]:
    found = (_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


def _process(pid: int) -> Process | None:
    try:
        stat = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        numbers = _read(f"/proc/{pid}/status").partition(b"\nNSpid:")[2].partition(b"\n")[0]
        command = _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    return Process(pid, int(stat[19]), int(stat[1]), len(numbers.split()) or 1, stat[0].decode(), command)


def _read(path: str) -> bytes:
    """Returns a file of /proc, without the layers that make this slow where every process is looked at."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(fd, 65536), b""))
    finally:
        os.close(fd)


def _pid_namespaces(pid: int) -> list[int]:
    """Of a process: its own and those around it, as far as we may see."""
    found: list[int] = []
    with suppress(OSError):
        fd = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        while True:
            found.append(os.fstat(fd).st_ino)
            try:
                outer = fcntl.ioctl(fd, _NS_GET_PARENT)
            finally:
                os.close(fd)
            fd = outer
    return found
