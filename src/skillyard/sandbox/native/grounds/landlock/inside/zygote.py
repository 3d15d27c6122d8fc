"""The warm interpreter of the landlock backend, confined before its imports, and its inits.

Without a pid namespace, an init is the subreaper of its tree: all that is left behind comes to it. Its ids and its
Landlock scope hold its signals to that tree, so kill(-1) ends all of it when the keeper lets go.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from skillyard.ipc import packets
from skillyard.sandbox.native.grounds.landlock.inside import places, walls
from skillyard.sandbox.native.inside import init, kept
from skillyard.sandbox.native.inside.plain import be_plain
from skillyard.sandbox.native.inside.zygote import freeze, import_watched, serve
from skillyard.sandbox.native.linux import kernel

DONE_STATUS = 0
"""Init's exit status when nothing of its tree is left."""


class Init(init.Init):
    """The native init, which confines each program as it is forked."""

    cannot_keep = "no process here sees another, so that it cannot be told which to spare"

    def __init__(
        self, spec: walls.Build, reach: walls.Reach, closing: bytes, control: int, channel: int, output: int
    ) -> None:
        self._spec = spec
        self._reach = reach
        self._closing = closing
        os.environ.update(places.variables(spec.root))
        super().__init__(control, channel, output)

    def run(self) -> None:
        try:
            super().run()
        finally:
            init.end_all_others()
        os._exit(DONE_STATUS)

    def place(self, path: str) -> str:
        return places.real(self._spec.root, path)

    def kill_tree(self, leader: int, *, beside: bool) -> None:
        # /proc is closed to us, so the keeper looks, and lets the others go on.
        if beside:
            kept.stop_all()
        packets.send(self._control, {"end_stopped" if beside else "end_tree": leader})

    def be_child(self, fds: tuple[int, ...]) -> None:
        walls.confine_program(self._spec, self._reach)
        super().be_child(fds)
        if "tempfile" in sys.modules:
            sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined] # another sandbox's, or nowhere
        kernel.install_filter(self._closing)


def main(keeper: int, settings: dict[str, Any]) -> None:
    """Serves clones on the descriptor ``keeper`` until it closes.

    ``settings`` has ``code`` and ``packages`` (directories), ``preload``, ``landlock`` (version), ``rules``,
    ``own_proc`` and ``closing`` (a filter in hexadecimal).
    """
    sock = socket.socket(fileno=keeper)
    rules = [walls.Rule(*rule) for rule in settings["rules"]]
    reach = walls.open_reach(settings["landlock"], rules, own_proc=settings["own_proc"])
    be_plain(settings["packages"], settings["code"])
    import_watched(sock, settings["preload"])
    closing = bytes.fromhex(settings["closing"])

    def become_init(order: bytes, fds: list[int]) -> None:
        spec = walls.Build.decode(order[1:])
        walls.build(spec, reach.version)
        Init(spec, reach, closing, *fds).run()

    freeze(bool(settings["preload"]))
    packets.send(sock, {"ready": True})
    serve(sock, lambda order, fds: kernel.clone_sibling(), become_init)
