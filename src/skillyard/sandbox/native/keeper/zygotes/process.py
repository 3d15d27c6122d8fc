"""A process that is or becomes a zygote. The keeper watches it and checks its words."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from skillyard.ipc import packets
from skillyard.ipc.channel import BadMessage
from skillyard.sandbox.native.groups.groups import Group
from skillyard.sandbox.native.keeper import messages
from skillyard.sandbox.native.keeper.loop import READ, Loop, Timer, Turns
from skillyard.sandbox.native.keeper.messages import Said, Word
from skillyard.sandbox.native.keeper.watch.processes import children, resident, threads
from skillyard.sandbox.native.linux import kernel


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How zygotes are kept. All forks of one share its address layout and hash seed, so none serves for more than
    ``runs`` clones or ``seconds``, nor waits for longer unused. One that imports modules ahead may take ``import_s``
    seconds for each, and may then hold ``preload_mb``; all together ``total_mb``."""

    runs: int = 2000
    seconds: float = 1800.0
    preload_mb: int = 256
    total_mb: int = 1024
    import_s: float = 30.0

    @classmethod
    def of(cls, config: dict[str, Any]) -> Upkeep:
        """Reads the values of ``[native]``."""
        names = ("retire_runs", "retire_s", "preload_mb", "zygotes_mb", "preload_s")
        return cls(*(config[name] for name in names))

    @property
    def most_mb(self) -> int:
        """Returns the MiB that one may hold while it imports, which takes more than afterwards."""
        return 2 * self.preload_mb + 64


class Space(Protocol):
    """A pid namespace that a zygote and its sandboxes have for themselves."""

    def has_strangers(self, zygote: int, known: Collection[int], beside: int = -1) -> bool:
        """Returns whether it has processes that are not ``known``. Raises OSError when they change meanwhile."""
        ...

    def end(self, loop: Turns, ours: Callable[[], Collection[int]]) -> None:
        """Ends all that is in it, but for ``ours``."""
        ...


@dataclass(frozen=True, slots=True)
class Started:
    """A zygote that started. ``space`` and ``group`` are those of this process alone, where it has any. ``mounts`` is
    its mountinfo from before packages' code ran in it."""

    pid: int
    space: Space | None = None
    group: Group | None = None
    mounts: str = ""


class Plan(Protocol):
    """How the process is made that becomes a zygote. ``modules`` are to be imported by it, in order."""

    @property
    def modules(self) -> tuple[str, ...]: ...

    def start(self, sock: socket.socket, errors: int, modules: tuple[str, ...]) -> Started:
        """Fork and exec it; it speaks on ``sock`` and complains on ``errors``. Raises OSError."""
        ...


MIB = 1 << 20
GO_ON = b"go"
_MAX_ERROR_TEXT = 4096
_AT_ONCE = 32
"""Words of one zygote that are heard before others have their turn."""
_LOOK_S = 0.05
CLONE_S = 20.0
"""How long a zygote may take for its next clone. One that shares its memory holds it until its walls stand."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """The owner of a process. ``cloned`` comes with a word CLONED or NOT_CLONED.

    ``ended`` comes once, for a process that serves no more. ``ours`` gives the keeper's children that somebody waits
    for, and ``bury`` takes a group without processes.
    """

    ready: Callable[[ZygoteProcess], None]
    cloned: Callable[[ZygoteProcess, Said], None]
    ended: Callable[[ZygoteProcess], None]
    ours: Callable[[], Collection[int]]
    bury: Callable[[Group], None]


class ZygoteProcess:
    """Imports ``modules`` in order; :attr:`fault` says why the next one failed, once it ended."""

    def __init__(self, loop: Loop, plan: Plan, modules: Sequence[str], upkeep: Upkeep, hooks: Hooks) -> None:
        """Raises OSError."""
        self._loop = loop.guarded(lambda error: self.disown(f"the keeper had a fault with it: {type(error).__name__}"))
        self._hooks = hooks
        self._upkeep = upkeep
        self.modules = tuple(modules)
        self.ready = False
        self.fault = ""
        self.lied = False
        self.imported = 0
        self.asked = 0
        """Clones that it was asked for and has not answered."""
        self.runs = 0
        self.good, self.bad = False, 0
        """Whether a sandbox of it was made, and how many were not since."""
        self.memory_mb = 0
        self.born = time.monotonic()
        self.replaced_by: ZygoteProcess | None = None
        self._living: set[int] = set()
        """Inits that it cloned and told of."""
        self._text = bytearray()
        self._open = True
        self.sock, theirs = packets.pair()
        self._errors, errors = os.pipe2(os.O_CLOEXEC)
        try:
            started = plan.start(theirs, errors, self.modules)
        except OSError:
            self.sock.close()
            os.close(self._errors)
            raise
        finally:
            theirs.close()
            os.close(errors)
        self.pid, self._space, self._group = started.pid, started.space, started.group
        self.mounts = started.mounts
        self._pidfd = kernel.pidfd_open(self.pid)
        os.set_blocking(self._errors, False)
        self.sock.setblocking(False)
        self._late: Timer | None = None
        self._patience: Timer | None = None
        self._answered_at = 0.0
        try:
            self._loop.watch(self.sock.fileno(), READ, lambda _: self._hear())
            self._loop.watch(self._errors, READ, lambda _: self._complain())
        except OSError:
            self.close()
            raise
        if self.modules:
            self._give_time()
            self._loop.after(_LOOK_S, self._look)

    def old(self) -> bool:
        if self.replaced_by is not None:
            return False
        return self.runs >= self._upkeep.runs or time.monotonic() - self.born > self._upkeep.seconds

    def complaint(self) -> str:
        """Returns the last line that names something: in a traceback, the error."""
        lines = self._text.decode("utf-8", "replace").strip().splitlines()
        naming = [line for line in lines if not line.startswith((" ", "Current thread")) and ": " in line]
        return next(reversed(naming or lines), "")[-500:]

    def measured_mb(self) -> int:
        """Returns the MiB that it holds at the moment."""
        self.memory_mb = resident(f"/proc/{self.pid}") // MIB
        return self.memory_mb

    def has_strangers(self, beside: int = -1) -> bool:
        """Returns whether its pid namespace has processes that nobody ordered. Only sandboxes are expected.

        Raises OSError when they change while they are looked at.
        """
        if self._space is None:
            return bool(children(self.pid))
        known = {self.pid, *self._living, *self._hooks.ours()}
        return self._space.has_strangers(self.pid, known, beside if self.asked else -1)

    def asks(self) -> None:
        """Learns that it was asked for a clone, for which it has a time."""
        self.runs += 1
        self.asked += 1
        if self.asked == 1:
            self._answered_at = time.monotonic()
        if self._patience is None:
            self._patience = self._loop.after(CLONE_S, self._lose_patience)

    def _lose_patience(self) -> None:
        """Ends it where a clone is late, and that clone with it."""
        self._patience = None
        if not self._open or not self.asked:
            return
        left_s = self._answered_at + CLONE_S - time.monotonic()
        if left_s > 0:
            self._patience = self._loop.after(left_s, self._lose_patience)
        else:
            self._fail(f"a clone of it takes longer than {CLONE_S:g} s")

    def disown(self, why: str) -> None:
        """Ends a process that its packages spoiled."""
        self.lied = True
        self._fail(why)

    def left(self, pid: int) -> None:
        """Learns that a sandbox that it cloned has ended."""
        self._living.discard(pid)
        if not self._open:
            self._end_space()

    def close(self) -> None:
        """Ends it; its sandboxes go on, its other processes end."""
        if not self._open:
            return
        self._open = False
        self._complain()
        for fd in (self.sock.fileno(), self._errors):
            self._loop.forget(fd)
        self.sock.close()
        os.close(self._errors)
        for timer in (self._late, self._patience):
            if timer is not None:
                timer.cancel()
        kernel.pidfd_kill(self._pidfd)
        os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOWAIT)
        end_orphans(self._loop, self.pid, {*self._living, self.pid})
        if not self._shares_pids:
            self._reap()
        self._end_space()

    @property
    def _shares_pids(self) -> bool:
        """Returns whether its sandboxes could get its pid, by which libraries tell a fork."""
        return bool(self.modules) and self._space is None

    def _reap(self) -> None:
        if self._pidfd < 0:
            return
        with suppress(ChildProcessError):  # who ends the strangers of another zygote may have reaped it
            os.waitpid(self.pid, 0)
        os.close(self._pidfd)
        self._pidfd = -1

    def _end_space(self) -> None:
        if self._living:
            return
        self._reap()
        if self._space is not None:
            self._space.end(self._loop, self._hooks.ours)
            self._space = None
        if self._group is not None:
            self._hooks.bury(self._group)
            self._group = None

    def _hear(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._open:
                return
            try:
                said = messages.hear_zygote(self.sock)
                if said is None:
                    break
                self._take(said)
            except BlockingIOError:
                return
            except BadMessage as bad:
                self.disown(str(bad))
                return
            except OSError:
                break
        else:
            return
        self._fail("it ended")

    def _take(self, said: Said) -> None:
        """Takes a word. Raises BadMessage for one out of turn."""
        if said.word in (Word.CLONED, Word.NOT_CLONED):
            self._answered(said)
        elif self.ready:
            raise BadMessage("it was ready before")
        elif said.word is Word.READY and self.imported == len(self.modules):
            self._is_ready()
        elif said.word is Word.IMPORTED and self.imported < len(self.modules):
            self._consider()
        elif said.word is Word.FAULT and self.imported < len(self.modules):
            self._fail(said.text)
        else:
            raise BadMessage("it said that out of turn")

    def _answered(self, said: Said) -> None:
        if not self.asked:
            if said.pidfd >= 0:
                os.close(said.pidfd)
            raise BadMessage("it spoke of a clone that nobody asked for")
        if said.word is Word.CLONED:
            pid, pidfd = said.pid, said.pidfd
            if pidfd < 0:
                pidfd = messages.opened(pid, self.pid)
            if self.modules:
                try:
                    pid = messages.vouched(pidfd, self.pid)
                    if pid in self._living or pid == self.pid:
                        raise BadMessage("it spoke of one clone twice")
                except (BadMessage, OSError):
                    os.close(pidfd)
                    raise
            self._living.add(pid)
            said = Said(said.word, pid=pid, pidfd=pidfd, ready=said.ready)
        self.asked -= 1
        self._answered_at = time.monotonic()
        self._hooks.cloned(self, said)

    def _is_ready(self) -> None:
        self.ready = True
        self.measured_mb()
        if self._late is not None:
            self._late.cancel()
        self._hooks.ready(self)

    def _consider(self) -> None:
        """Decides whether an imported module may stay, before the next one."""
        if why := self._objection():
            self._fail(why)
            return
        self.imported += 1
        self._give_time()
        self.sock.send(GO_ON)

    def _objection(self) -> str:
        if len(threads(self.pid)) != 1:
            return "it starts threads, which no fork survives"
        try:
            if self.has_strangers():
                return "it starts processes"
        except OSError as error:
            return f"its processes cannot be seen: {error.strerror}"
        if (held := self.measured_mb()) > self._upkeep.preload_mb:
            return f"with it, {held} MiB are held, and native.preload_mb is {self._upkeep.preload_mb}"
        return ""

    def _give_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
        late = f"its import takes longer than {self._upkeep.import_s:g} s"
        self._late = self._loop.after(self._upkeep.import_s, lambda: self._fail(late))

    def _look(self) -> None:
        """Watches its memory while it imports, which perhaps no controller counts."""
        if not self._open or self.ready:
            return
        if resident(f"/proc/{self.pid}") // MIB > self._upkeep.most_mb:
            self._fail(f"its import takes more than {self._upkeep.most_mb} MiB")
        else:
            self._loop.after(_LOOK_S, self._look)

    def _fail(self, why: str) -> None:
        if self._open:
            self.fault = why
            self._hooks.ended(self)

    def _complain(self) -> None:
        try:
            data = os.read(self._errors, 65536)
        except OSError:
            return
        if not data:
            self._loop.forget(self._errors)
        self._text = (self._text + data)[-_MAX_ERROR_TEXT:]


_PARENT, _GROUP = 1, 2
"""Fields of /proc/PID/stat behind the name (proc_pid_stat(5))."""


def end_orphans(loop: Turns, zygote: int, known: Collection[int]) -> None:
    """Kills and reaps processes in the group of an ended zygote, but for ``known`` pids."""
    for pid in _orphans(zygote):
        if pid not in known:
            pidfd = kernel.pidfd_open(pid)
            kernel.pidfd_kill(pidfd)
            loop.watch(pidfd, READ, lambda _, pid=pid, pidfd=pidfd: _reap_orphan(loop, pid, pidfd))  # type: ignore[misc]


def _reap_orphan(loop: Turns, pid: int, pidfd: int) -> None:
    loop.forget(pidfd)
    os.close(pidfd)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _orphans(group: int) -> Iterator[int]:
    """Yields our children in this process group. A child keeps its pid until we reap it."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
                if int(fields[_PARENT]) == os.getpid() and int(fields[_GROUP]) == group:
                    yield int(name)
