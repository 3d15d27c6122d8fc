"""How a landlock keeper comes to be: exec'd by a server like the native one, without a namespace of its own."""

from __future__ import annotations

import os
import socket
from typing import Any

from skillyard.sandbox.native.grounds import ids
from skillyard.sandbox.native.grounds.host import Host
from skillyard.sandbox.native.grounds.landlock import area, python, support
from skillyard.sandbox.native.grounds.landlock.ground import Ground, LandlockYard
from skillyard.sandbox.native.grounds.landlock.place import LandlockBox
from skillyard.sandbox.native.grounds.namespaces.zygote import Ids
from skillyard.sandbox.native.groups import groups
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.main import Keeper, launch, upkeep
from skillyard.sandbox.native.keeper.sandbox import Box
from skillyard.sandbox.native.keeper.sandboxes import Yard
from skillyard.sandbox.native.keeper.service import Service
from skillyard.sandbox.native.linux import kernel, landlock


def main(config: dict[str, Any]) -> None:
    """As :func:`skillyard.sandbox.native.keeper.main.main`."""
    launch(config, LandlockKeeper, support.check, _settle)


def _settle() -> None:
    """Whatever an init that was killed leaves comes to us. Nobody of our own user may look into us."""
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    os.umask(0o022)


class LandlockKeeper(Keeper):
    def __init__(self, config: dict[str, Any], listener: socket.socket) -> None:
        self._run_dir = config["run_dir"]
        self._given = Ids(0, 1)
        self._area: area.Area | None = None
        try:
            super().__init__(config, listener)
        except BaseException:
            self._discard()
            raise

    def choose_ids(self, config: dict[str, Any]) -> tuple[Ids, int]:
        """The yard below gives them out itself, so it is told of none."""
        self._given, lock = ids.choose(config["uid_base"], config["uid_count"])
        support.check_identity(own_ids=self._given.count > 1, version=landlock.abi())
        return Ids(0, 1), lock

    def find_groups(self, run_dir: str) -> groups.Cgroups:
        return groups.Cgroups()

    def make_yard(self, loop: Loop, host: Host, config: dict[str, Any]) -> Yard:
        own_ids = self._given.count > 1
        self._area = made = area.make(host.run_dir, own_uids=own_ids)
        ground = Ground(made, python.find(made, everybody=own_ids), self._given)
        self._landlock_yard = LandlockYard(loop, host, config["ready"], upkeep(config), ground)
        return self._landlock_yard

    def check_memory(self, box: Box) -> None:
        assert isinstance(box, LandlockBox)
        self._landlock_yard.watch.check(box, self.objects)

    def make_service(self, loop: Loop, yard: Yard, facts: dict[str, Any]) -> Service:
        assert self._area is not None
        own = {
            "own_uid": self._given.count > 1,
            "uids": [self._given.base, self._given.count],
            "homes": self._area.homes,
            "secret": self._area.secret,
            "code": self._area.code,
            "executable": self._area.executable,
        }
        return super().make_service(loop, yard, facts | own)

    def _end(self) -> None:
        super()._end()
        self._loop.running = True
        self._landlock_yard.end_stragglers(self._stop)
        self._loop.run()
        self._discard()

    def _discard(self) -> None:
        if self._area is not None:
            area.discard(self._run_dir, self._area)

    def _stop(self) -> None:
        self._loop.running = False
