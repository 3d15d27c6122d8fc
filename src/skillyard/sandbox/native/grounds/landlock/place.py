"""The place of a landlock sandbox: a directory and two ids. Its init ends its processes."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from skillyard.sandbox.native.grounds.landlock import area as areas
from skillyard.sandbox.native.grounds.landlock.inside.zygote import DONE_STATUS
from skillyard.sandbox.native.grounds.landlock.ports import SandboxPorts
from skillyard.sandbox.native.grounds.landlock.tree import work
from skillyard.sandbox.native.inside.walls import PLAIN
from skillyard.sandbox.native.keeper.account import Account, ProcessMeter, forced
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.request import Shape, Show
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.watch.processes import below, children
from skillyard.sandbox.native.linux import kernel

GRACE_S = 2.0
"""Seconds for init to end its tree. Then we end init, and by their user's id all others at once."""
PATIENCE_S = 30.0
"""The same without such an id: nobody else ends the tree as fast as init, once it gets its turn."""


class Owner(Protocol):
    """The ground of a place."""

    def end_left(self, place: LandlockPlace, then: Callable[[], None]) -> None:
        """Ends the processes of an init that was itself ended."""
        ...

    def remove(self, place: LandlockPlace, then: Callable[[], None]) -> None:
        """Removes the directory."""
        ...

    def release(self, place: LandlockPlace) -> None:
        """Takes its ids back."""
        ...


class LandlockPlace:
    """``root`` is its directory; ``uid`` of programs and ``warden`` of init are 0 for none.

    ``ports`` are those of a sandbox whose programs may listen.
    """

    stays = True
    lingers = False
    ends_whole = False
    group = None
    made = ""

    def __init__(
        self,
        loop: Loop,
        owner: Owner,
        shape: Shape,
        root: str,
        ids: tuple[int, int],
        build: bytes,
        ports: SandboxPorts | None = None,
    ) -> None:
        self._loop = loop
        self._owner = owner
        self.shape = shape
        self.root = root
        self.uid, self.warden = ids
        self.order = PLAIN + build
        self.account = Account(None, shape.memory_mb, ProcessMeter())
        self.removed = False
        self._ending_asked = False
        self._ports = ports

    def ready(self, sandbox: Sandbox) -> None:
        if self._ports is not None:
            self._ports.begin(sandbox.pid)

    def dial(self, port: int, *, six: bool) -> socket.socket:
        """Begins a connection to a port. Raises ConnectionRefusedError when nobody listens, OSError."""
        if self._ports is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "made without forwarding, so nobody can listen")
        return self._ports.dial(port, six=six)

    def show(self, sandbox: Sandbox, shows: Sequence[Show], then: Callable[[OSError | None], None]) -> None:
        def shown(error: OSError | None) -> None:
            named = error and OSError(error.errno or 0, f"showing: {error.strerror or error}: {error.filename}")
            then(named)

        work(self._loop, self._showing(shows), shown)

    def end(self, sandbox: Sandbox) -> None:
        """Lets go of init, which then ends all processes."""
        if self._ending_asked:
            return
        self._ending_asked = True
        try:
            sandbox.control.shutdown(socket.SHUT_WR)
        except OSError:
            return  # init has closed its end, and is ending
        sandbox.loop.after(GRACE_S if self.uid else PATIENCE_S, lambda: _force(sandbox))

    def told(self, sandbox: Sandbox, message: dict[str, Any]) -> bool:
        if "end_tree" in message:
            _end_tree(sandbox.pid, message["end_tree"])
        elif "end_stopped" in message:
            _end_tree(sandbox.pid, message["end_stopped"])
            for pid in below(sandbox.pid, sandbox.shape.pids):  # init has stopped all, and the others go on
                _signal(pid, signal.SIGCONT)
        else:
            return False
        return True

    def ending(self, status: int) -> dict[str, Any] | None:
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXFSZ:
            return forced("disk", f"over the disk limit of {self.shape.disk_mb} MiB")
        return None

    def gone(self, sandbox: Sandbox, then: Callable[[], None]) -> None:
        """Removes the directory, after the processes that init left, unless it left none."""
        if self._ports is not None:
            self._ports.end()  # before its init's pid can be another's
        gone = os.waitid(os.P_PIDFD, sandbox.pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if gone is not None and gone.si_code == os.CLD_EXITED and gone.si_status == DONE_STATUS:
            self._owner.remove(self, then)
        else:
            self._owner.end_left(self, lambda: self._owner.remove(self, then))

    def release(self) -> None:
        if self._ports is not None:
            self._ports.end()
        self._owner.release(self)

    def _showing(self, shows: Sequence[Show]) -> Iterator[None]:
        for item in shows:
            yield from areas.showing(self.root, item.source, item.target, item.aliases)


def _force(sandbox: Sandbox) -> None:
    if not sandbox.dead and sandbox.pidfd >= 0:
        kernel.pidfd_kill(sandbox.pidfd)


def _end_tree(init: int, leader: int) -> None:
    """Kills a program's processes. Each is stopped before its children, so that none forks away.

    The leader's pid comes from init's message and must be a child of init; all other pids come from the kernel.
    """
    seen: list[int] = []
    queue = [leader] if leader in children(init) else []
    while queue:
        pid = queue.pop()
        if _signal(pid, signal.SIGSTOP):
            seen.append(pid)
            queue.extend(children(pid))
    for pid in seen:
        _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
