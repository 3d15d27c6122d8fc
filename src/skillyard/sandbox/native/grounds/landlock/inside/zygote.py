"""The warm interpreter of the landlock backend: as the native one, and confined before it imports anything."""

from __future__ import annotations

import gc
import os
import socket
import sys
from typing import Any

from skillyard.guest import main as guest
from skillyard.ipc import packets
from skillyard.sandbox.native.grounds.landlock.inside import places, walls
from skillyard.sandbox.native.inside import init
from skillyard.sandbox.native.inside.zygote import be_plain, import_watched, tell_cloned
from skillyard.sandbox.native.linux import kernel

DONE_STATUS = 0
"""Init's exit status when nothing of its tree is left."""


class Init(init.Init):
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

    def kill_tree(self, leader: int) -> None:
        """/proc is closed to us: the keeper looks."""
        packets.send(self._control, {"end_tree": leader})

    def be_child(self, fds: tuple[int, ...]) -> None:
        walls.confine_program(self._spec, self._reach)
        super().be_child(fds)
        if "tempfile" in sys.modules:
            sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined] # another sandbox's, or nowhere
        kernel.install_filter(self._closing)


def main(keeper: int, settings: dict[str, Any]) -> None:
    """Serve forks on the descriptor ``keeper`` until it closes. ``settings``: ``code`` and ``packages`` (directories),
    ``preload``, ``landlock`` (version), ``rules``, ``own_proc``, ``closing`` (a filter in hexadecimal)."""
    sock = socket.socket(fileno=keeper)
    rules = [walls.Rule(*rule) for rule in settings["rules"]]
    reach = walls.open_reach(settings["landlock"], rules, own_proc=settings["own_proc"])
    be_plain(settings["packages"], settings["code"])
    import_watched(sock, settings["preload"])
    guest.prepare(bool(settings["preload"]))
    gc.collect()
    gc.freeze()
    gc.disable()
    packets.send(sock, {"ready": True})
    _serve(sock, reach, bytes.fromhex(settings["closing"]))


def _serve(sock: socket.socket, reach: walls.Reach, closing: bytes) -> None:
    """Read nothing here: each page that this process touches is copied again after each fork."""
    while (got := packets.receive_raw(sock)) is not None:
        _fork(sock, *got, reach, closing)


def _fork(sock: socket.socket, message: bytes, fds: list[int], reach: walls.Reach, closing: bytes) -> None:
    try:
        pid, pidfd = kernel.clone_sibling()
    except OSError as error:
        packets.send(sock, {"failed": str(error)})
        _close(fds)
        return
    if pid == 0:
        os.close(sock.fileno())
        _become_init(message, fds, reach, closing)
    tell_cloned(sock, pid, pidfd)
    _close([*fds, pidfd])


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _become_init(message: bytes, fds: list[int], reach: walls.Reach, closing: bytes) -> None:
    """Never returns: whatever happens, this process is not the zygote any more."""
    try:
        spec = walls.Build.decode(message[1:])
        walls.build(spec, reach.version)
        Init(spec, reach, closing, *fds).run()
    except BaseException as error:  # noqa: BLE001 - the keeper must hear of it, and this process must end
        try:
            packets.send(socket.socket(fileno=fds[0]), {"broken": f"{type(error).__name__}: {error}"})
        finally:
            os._exit(1)
