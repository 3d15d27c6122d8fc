"""All gVisor sandboxes of a keeper: the native yard, whose sandboxes come from runsc instead of a zygote."""

from __future__ import annotations

import errno
import os

from skillyard.sandbox.native.grounds.gvisor import bundle, jail
from skillyard.sandbox.native.grounds.gvisor.account import GvisorAccount
from skillyard.sandbox.native.grounds.gvisor.boots import Boots, Moorings
from skillyard.sandbox.native.grounds.gvisor.place import GvisorBox
from skillyard.sandbox.native.grounds.gvisor.runsc import Runsc
from skillyard.sandbox.native.grounds.host import Host
from skillyard.sandbox.native.grounds.namespaces.listening import Listen, Opened
from skillyard.sandbox.native.grounds.namespaces.mounts import Show
from skillyard.sandbox.native.groups.groups import Group, GroupLimits
from skillyard.sandbox.native.inside import walls
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.sandbox import Box, Shape
from skillyard.sandbox.native.keeper.sandboxes import MIB, Asked, Yard
from skillyard.sandbox.native.keeper.zygotes.process import Upkeep
from skillyard.sandbox.native.keeper.zygotes.zygotes import Key, Maker

_HEADROOM = 192 * MIB
"""What runsc, its gofer and its sentry may hold beside the programs' memory and files, page cache included."""
_TASKS_EACH, _TASKS_MORE = 3, 512
"""Threads of the host for a task of the guest, and for Go's runtime: a second line behind the sentry's own count."""


class GvisorYard(Yard):
    def __init__(self, loop: Loop, host: Host, ready: int, runsc: Runsc) -> None:
        super().__init__(loop, host, ready, Upkeep())
        self.boots = Boots(runsc, max(2, os.cpu_count() or 1))

    def _new_zygote(self, key: Key) -> Maker:
        return Moorings(self.boots, self._jail, self._failed)

    def _build(self, box: Box) -> bytes:
        """Nothing reads it: runsc is told by its bundle."""
        return b""

    def _new_box(self, handle: str, shape: Shape, slot: int, group: Group | None) -> Box:
        cpus = self._affinity(shape.cpus)
        return GvisorBox(self._loop, handle, shape, slot, group, f"{self._host.run_dir}/spool", cpus)

    def _group_limits(self, shape: Shape) -> GroupLimits:
        memory = (shape.memory_mb + shape.disk_mb) * MIB + _HEADROOM
        return GroupLimits(memory, shape.pids * _TASKS_EACH + _TASKS_MORE, shape.cpus)

    def _jail(self, box: GvisorBox) -> jail.Plan:
        shape, host = box.shape, self._host
        details = self._environments[shape.environment]
        contents = bundle.Contents(
            host.python,
            details["packages"],
            details["preload"],
            disk_bytes=shape.disk_mb * MIB,
            memory_bytes=shape.memory_mb * MIB,
            processes=shape.pids - 1,  # gVisor counts those that were begun as this user: not the first
        )
        return jail.Plan(
            name=box.handle,
            runsc=self.boots.runsc,
            contents=contents,
            mount_on=f"{host.run_dir}/root",
            code=f"{host.run_dir}/code",
            uid=self._id(box),
            own_uid=host.ids.count > 1,
            cpus=box.cpus,
            shown=box.shown,
        )

    def _id(self, box: Box) -> int:
        ids = self._host.ids
        return ids.base + box.slot if ids.count > 1 else 0

    def _lend(self, box: Box, asked: Asked) -> None:
        assert isinstance(box.account, GvisorAccount)
        box.account.begin()
        super()._lend(box, asked)

    def _show(self, box: Box, shows: tuple[Show, ...]) -> None:
        assert isinstance(box, GvisorBox)
        self._shower.show(box.pidfd, shows, {walls.SHOWN[name]: fd for name, fd in box.shown.items()})

    def listen(self, box: Box, wanted: Listen) -> Opened:
        raise OSError(errno.EOPNOTSUPP, "gVisor's network is its own: the host can open no sockets in it")

    def _is_ready(self, box: Box) -> None:
        assert isinstance(box, GvisorBox)
        self.boots.is_ready(box)
        super()._is_ready(box)

    def _is_dead(self, box: Box, why: str) -> None:
        assert isinstance(box, GvisorBox)
        self.boots.is_dead(box, why)
        super()._is_dead(box, why)
