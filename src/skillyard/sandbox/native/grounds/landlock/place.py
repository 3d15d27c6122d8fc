"""A sandbox of the landlock backend, as the keeper sees it: no namespace ends with its init, so init ends its tree."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from skillyard.sandbox.native.grounds.landlock.inside.init import DONE_STATUS
from skillyard.sandbox.native.grounds.landlock.looks import children
from skillyard.sandbox.native.keeper.account import forced
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.sandbox import Box, Shape
from skillyard.sandbox.native.linux import kernel

GRACE_S = 2.0
"""How long init may take to end its tree before it is ended itself, and the rest by us: at once by its user's id."""
PATIENCE_S = 30.0
"""The same where it has no such id: nobody ends its tree as fast as init does when it gets its turn."""


class LandlockBox(Box):
    """``root`` is its directory. ``uid`` and ``warden`` are the ids of its programs and its init, 0 where they have
    none. ``on_init_gone(box, whole, then)`` removes what is left of it and goes on with ``then``; ``whole`` says that
    init ended its tree before."""

    def __init__(self, loop: Loop, handle: str, shape: Shape, spool_dir: str, root: str, uid: int, warden: int) -> None:
        super().__init__(loop, handle, shape, 0, None, spool_dir)
        self.root = root
        self.uid = uid
        self.warden = warden
        self.removed = False
        self.on_init_gone: Callable[[LandlockBox, bool, Callable[[], None]], None]
        self._ending_asked = False

    def kill(self) -> None:
        """Let go of init, which then ends all that runs."""
        if self.pidfd < 0 or self.dead or self._ending_asked:
            return
        self._ending_asked = True
        try:
            self.control.shutdown(socket.SHUT_WR)
        except OSError:
            return  # init has closed its end, and is ending
        self._loop.after(GRACE_S if self.uid else PATIENCE_S, self._force)

    def _force(self) -> None:
        if not self.dead and self.pidfd >= 0:
            kernel.pidfd_kill(self.pidfd)

    def _told(self, message: dict[str, Any]) -> None:
        if "end_tree" in message:
            self._end_tree(message["end_tree"])
        else:
            super()._told(message)

    def _end_tree(self, leader: int) -> None:
        """Stop what is found before going deeper, so that nothing forks away while it is being killed. Only what
        lies below our own init: pids come from its trusted message, and from the kernel."""
        seen: list[int] = []
        queue = [leader] if leader in children(self.pid) else []
        while queue:
            pid = queue.pop()
            if _signal(pid, signal.SIGSTOP):
                seen.append(pid)
                queue.extend(children(pid))
        for pid in seen:
            _signal(pid, signal.SIGKILL)

    def _init_gone(self) -> None:
        self._loop.forget(self.pidfd)
        try:
            gone = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            whole = gone is not None and gone.si_code == os.CLD_EXITED and gone.si_status == DONE_STATUS
            self.on_init_gone(self, whole, super()._init_gone)
        except Exception as error:  # noqa: BLE001 - whoever waits for its end hears of it
            self._loop.report(error)
            if not self.dead:
                super()._init_gone()

    def _ending(self, id: str, status: int) -> dict[str, Any]:
        program = self.programs.get(id)
        over_file_size = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXFSZ
        if over_file_size and (program is None or program.forced is None):
            return forced("disk", f"over the disk limit of {self.shape.disk_mb} MiB")
        return super()._ending(id, status)


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
