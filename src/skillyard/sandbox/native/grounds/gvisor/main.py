"""The keeper of gVisor sandboxes: the native backend's, over another yard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from skillyard.sandbox.native.grounds.gvisor import code, runsc
from skillyard.sandbox.native.grounds.gvisor.account import find_sentry
from skillyard.sandbox.native.grounds.gvisor.ground import GvisorYard
from skillyard.sandbox.native.grounds.gvisor.place import GvisorBox
from skillyard.sandbox.native.grounds.host import Host
from skillyard.sandbox.native.keeper import main as native
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.sandbox import Box
from skillyard.sandbox.native.keeper.sandboxes import Yard
from skillyard.sandbox.native.keeper.service import Header, Number, Service
from skillyard.sandbox.native.keeper.watch.tree import tree_of


def main(config: dict[str, Any]) -> None:
    """As :func:`skillyard.sandbox.native.keeper.main.main`; ``runsc`` is an absolute path, ``platform`` as in
    GvisorOptions."""
    native.main(config, GvisorKeeper)


class GvisorKeeper(native.Keeper):
    def make_yard(self, loop: Loop, host: Host, config: dict[str, Any]) -> Yard:
        self._runsc = runsc.describe(config["runsc"], config["platform"])
        code.install(Path(host.run_dir) / "code")
        return GvisorYard(loop, host, config["ready"], self._runsc)

    def make_service(self, loop: Loop, yard: Yard, facts: dict[str, Any]) -> Service:
        about = {"runsc": self._runsc.path, "runsc_version": self._runsc.version}
        return GvisorService(loop, yard, facts | about)

    def check_memory(self, box: Box) -> None:
        assert isinstance(box, GvisorBox)
        box.check_memory()


class GvisorService(Service):
    def _do_outside(self, number: Number, header: Header, body: bytes) -> None:
        """What a sandbox is on the host: ``platform`` and, of its sentry, ``status`` and ``spaces``; all of its
        processes' ``uids``, as the keeper counts them."""
        box = self._box(header)
        assert isinstance(box, GvisorBox)
        self._answer(number, platform=box.platform, **_outside(box.pid))


def _outside(root: int) -> dict[str, Any]:
    sentry = find_sentry(root)
    if sentry is None:
        return {"status": {}, "spaces": {}, "uids": []}
    spaces = f"/proc/{sentry.pid}/ns"
    return {
        "status": _status(sentry.pid),
        "spaces": {name: os.readlink(f"{spaces}/{name}") for name in os.listdir(spaces)},
        "uids": sorted({int(_status(pid)["Uid"].split()[0]) for pid in tree_of(root)}),
    }


def _status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
