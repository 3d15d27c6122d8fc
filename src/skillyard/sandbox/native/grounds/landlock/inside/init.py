"""The init of a sandbox without a pid namespace: the native one, which confines each program as it is forked.

All that is left behind in its tree comes to it, since it is a subreaper; what it can signal is its own tree, for
its ids and its Landlock scope end there. So it can end all of it by one kill(-1), and does when the keeper lets go.
"""

from __future__ import annotations

import os
import sys

from skillyard.ipc import packets
from skillyard.sandbox.native.grounds.landlock.inside import places, walls
from skillyard.sandbox.native.inside import init
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
