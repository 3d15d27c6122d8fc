"""One gVisor sandbox, as its keeper sees it."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from skillyard.ipc import packets
from skillyard.sandbox.native.grounds.gvisor.account import MIB, GvisorAccount
from skillyard.sandbox.native.grounds.namespaces.mounts import new_tree
from skillyard.sandbox.native.groups.groups import Group
from skillyard.sandbox.native.inside import walls
from skillyard.sandbox.native.keeper import init_words
from skillyard.sandbox.native.keeper.account import Account
from skillyard.sandbox.native.keeper.loop import READ, Loop, Timer
from skillyard.sandbox.native.keeper.sandbox import Box, Shape

BOOT_BOUND_S = 20.0
_TEXT_KEPT = 4096
_PIECES_A_TURN = 64
_LOOKS = 2
"""How often in a row memory is found over its limit before that counts: gVisor gives back freed memory a little
later than it was freed."""


class GvisorBox(Box):
    """``platform`` is what it was started on; ``cpus`` what it is held to where no controller counts."""

    stays = False

    def __init__(
        self,
        loop: Loop,
        handle: str,
        shape: Shape,
        slot: int,
        group: Group | None,
        spool_dir: str,
        cpus: tuple[int, ...],
    ) -> None:
        super().__init__(loop, handle, shape, slot, group, spool_dir)
        self.platform = ""
        self.cpus = cpus
        self.shown = {name: new_tree() for name in walls.SHOWN}
        self._said, self.errors = os.pipe2(os.O_CLOEXEC)
        self._text = bytearray()
        self._times_over = 0
        self._files_bytes = 0
        self._asked_files = self._files_known = False
        self._boot_bound: Timer | None = None
        os.set_blocking(self._said, False)
        self._loop.watch(self._said, READ, lambda _: self._listen())

    def make_account(self) -> Account:
        return GvisorAccount(self.group, self.shape.memory_mb)

    def started(self, pid: int, pidfd: int, platform: str, groups: list[int]) -> None:
        """runsc runs: its init waits for its descriptors on the control socket."""
        self.platform = platform
        packets.send(self.control, {"stdio": True}, [self.inside_channel.fileno(), self.inside_output])
        os.close(self.errors)
        self.handed_over([-1, -1, -1, *groups])
        self.cloned(pid, pidfd)
        self._boot_bound = self._loop.after(BOOT_BOUND_S, self._consider_boot)

    def not_started(self, groups: list[int]) -> None:
        os.close(self.errors)
        self.handed_over([-1, -1, -1, *groups])

    def kill(self) -> None:
        if not self.dead:
            self.account.look()
        super().kill()

    def check_memory(self) -> None:
        """Memory and files come as one sum; how much of it is files is asked where it matters."""
        assert isinstance(self.account, GvisorAccount)
        limit, held = self.shape.memory_mb * MIB, self.account.held()
        if held > limit and not self._asked_files:
            self._asked_files = True
            with contextlib.suppress(OSError):  # it ends, or listens to nobody: both limits together hold all the same
                packets.send(self.control, {"weigh": True})
        self.account.saw(max(0, held - self._files_bytes))
        files = min(self._files_bytes, held)
        beyond_both = held > limit + self.shape.disk_mb * MIB
        self._times_over = self._times_over + 1 if beyond_both or (self._files_known and held - files > limit) else 0
        if self.forced is None and (self._times_over >= _LOOKS or self.account.out_of_memory()):
            self.end_for("memory", f"over the memory limit of {self.shape.memory_mb} MiB")

    def release(self) -> None:
        super().release()
        if self._boot_bound is not None:
            self._boot_bound.cancel()
        self._loop.forget(self._said)
        for fd in (self._said, *self.shown.values()):
            os.close(fd)

    def _told(self, message: dict[str, Any]) -> None:
        if "weighed" in message:
            self._files_bytes, self._asked_files, self._files_known = message["weighed"], False, True
        else:
            super()._told(message)

    def _finish(self, id: str, ending: dict[str, Any]) -> None:
        """runsc takes its time to end after its init did."""
        super()._finish(id, ending)
        if self.lease is not None and self.lease.single:
            self.kill()

    def _init_gone(self) -> None:
        self._listen()
        if self.ready_at is None and not self._broken:
            self._broken = self._complaint()
        super()._init_gone()

    def _consider_boot(self) -> None:
        if self.ready_at is None and not self.dead:
            self._broken = f"it did not start within {BOOT_BOUND_S:.0f} s"
            self.kill()

    def _complaint(self) -> str:
        """The end of what runsc said."""
        return init_words.plain(self._text.decode("utf-8", "replace")) or "runsc ended without a word"

    def _listen(self) -> None:
        """All is taken, so that nobody waits for us; the end of it is kept."""
        for _ in range(_PIECES_A_TURN):
            try:
                data = os.read(self._said, 1 << 16)
            except OSError:
                return
            if not data:
                self._loop.forget(self._said)
                return
            self._text = (self._text + data)[-_TEXT_KEPT:]
