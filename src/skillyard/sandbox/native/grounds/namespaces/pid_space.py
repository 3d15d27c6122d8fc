"""A pid namespace for one zygote that imports packages, which holds all that they start.

Its first process does nothing. When it ends, all others in there end, too (pid_namespaces(7)), so it stays as long as
sandboxes of the zygote do.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Collection
from contextlib import suppress

from skillyard.sandbox.native.keeper.loop import READ, Turns
from skillyard.sandbox.native.keeper.watch.processes import children, status, threads
from skillyard.sandbox.native.linux import kernel

_AGAIN_S = 0.01
_NS_GET_PARENT = 0xB702
"""ioctl_nsfs(2)."""

SPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
"""The namespaces that each sandbox has for itself (namespaces(7))."""

_FIRST: set[int] = set()
"""The first process of each of our spaces; an ordinary user's may not be looked at."""


class PidSpace:
    def __init__(self) -> None:
        """Raises OSError."""
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        try:
            kernel.unshare(kernel.CLONE_NEWPID)
            try:
                self._first = os.fork()
                if self._first == 0:
                    _be_there()
                self._space = os.open("/proc/self/ns/pid_for_children", os.O_RDONLY | os.O_CLOEXEC)
            finally:
                kernel.setns(self._own, kernel.CLONE_NEWPID)
        except BaseException:
            os.close(self._own)
            raise
        self._pidfd = kernel.pidfd_open(self._first)
        _FIRST.add(self._first)

    def fork(self) -> int:
        """Forks a child of ours into the namespace. Raises OSError."""
        kernel.setns(self._space, kernel.CLONE_NEWPID)
        pid = os.fork()
        if pid:
            kernel.setns(self._own, kernel.CLONE_NEWPID)
        return pid

    def abandon(self) -> None:
        """Ends the namespace, in which no process of ours was made."""
        kernel.pidfd_kill(self._pidfd)
        for fd in (self._pidfd, self._own, self._space):
            os.close(fd)
        os.waitpid(self._first, 0)
        _FIRST.discard(self._first)

    def has_strangers(self, zygote: int, known: Collection[int], beside: int = -1) -> bool:
        """Returns whether it has processes that are not ``known``. Raises OSError when they change.

        The look takes in the children of the zygote, of the first process, which gets the orphans, and of ours. With
        ``beside``, a process in an inner namespace may be there that shares no namespace with that process.
        """
        if len(threads(zygote)) != 1 or children(zygote) or children(self._first):
            return True
        own = os.stat(self._space)
        return any(
            self._is_strange(pid, own, beside)
            for pid in children(os.getpid())
            if pid not in known and pid not in _FIRST and not _is_dead(pid)
        )

    def _is_strange(self, pid: int, own: os.stat_result, beside: int) -> bool:
        at = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        depth = 0
        try:
            while not os.path.samestat(os.fstat(at), own):
                try:
                    above = fcntl.ioctl(at, _NS_GET_PARENT)
                except PermissionError:
                    return False  # it is above us: this one is of another zygote
                os.close(at)
                at, depth = above, depth + 1
        finally:
            os.close(at)
        return not depth or beside < 0 or any(_same_space(pid, beside, name) for name in SPACES)

    def end(self, loop: Turns, ours: Callable[[], Collection[int]]) -> None:
        """Kills and reaps all processes in there. ``ours`` are the children that somebody waits for.

        Nobody waits for a clone that is our child and was never told of; it would keep the namespace for ever.
        """
        kernel.pidfd_kill(self._pidfd)
        loop.watch(self._pidfd, READ, lambda _: self._gone(loop))

        def reap() -> None:
            if self._pidfd >= 0:
                _reap_strangers({self._first, *ours()})
                loop.after(_AGAIN_S, reap)

        reap()

    def _gone(self, loop: Turns) -> None:
        loop.forget(self._pidfd)
        os.close(self._pidfd)
        os.close(self._own)
        os.close(self._space)
        self._pidfd = -1
        with suppress(ChildProcessError):
            os.waitpid(self._first, 0)
        _FIRST.discard(self._first)


def _same_space(one: int, other: int, name: str) -> bool:
    return os.readlink(f"/proc/{one}/ns/{name}") == os.readlink(f"/proc/{other}/ns/{name}")


def _is_dead(pid: int) -> bool:
    """Returns whether the process ended and nobody has reaped it yet."""
    found = status(pid)
    return found.get("State", "Z").startswith("Z") and len(threads(pid)) <= 1


def _be_there() -> None:
    """Runs as the first process: an undumpable copy of the keeper without its descriptors."""
    try:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what comes to it is reaped by the kernel
        kernel.close_from(0)
        while True:
            signal.pause()
    finally:
        os._exit(0)


def _reap_strangers(known: Collection[int]) -> None:
    for pid in children(os.getpid()):
        if pid not in known:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
