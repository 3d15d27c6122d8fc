"""Places of sandboxes for tests of a keeper's parts: nothing of the host is made for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from skillyard.sandbox.native.grounds.gvisor.place import GvisorPlace
from skillyard.sandbox.native.grounds.host import Host, Ids, Share
from skillyard.sandbox.native.grounds.namespaces.mounts import Shower
from skillyard.sandbox.native.keeper.account import Account, ProcessMeter
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.request import Shape, Show
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.linux import kernel


class BarePlace:
    """A process, and nothing around it."""

    group = None
    order = b""
    stays = True
    lingers = False
    ends_whole = True
    made = ""

    def __init__(self) -> None:
        self.account = Account(None, 64, ProcessMeter())

    def ready(self, sandbox: Sandbox) -> None:
        pass

    def show(self, sandbox: Sandbox, shows: Sequence[Show], then: Callable[[OSError | None], None]) -> None:
        then(None)

    def end(self, sandbox: Sandbox) -> None:
        self.account.meter.used.cpu_seconds = 0.5
        kernel.pidfd_kill(sandbox.pidfd)

    def told(self, sandbox: Sandbox, message: dict[str, Any]) -> bool:
        return False

    def ending(self, status: int) -> dict[str, Any] | None:
        return None

    def gone(self, sandbox: Sandbox, then: Callable[[], None]) -> None:
        then()

    def release(self) -> None:
        pass


class _Host:
    ids = Ids(0, 1)

    def give_back(self, share: Share) -> None:
        pass


class _Starts:
    def is_ready(self, place: GvisorPlace) -> None:
        pass

    def is_dead(self, place: GvisorPlace, why: str, *, was_ready: bool) -> None:
        pass


def gvisor_place(loop: Loop, shape: Shape, shower: Shower | None = None) -> GvisorPlace:
    return GvisorPlace(loop, cast(Host, _Host()), Share(0, None), shape, shower or Shower(Loop()), _Starts(), ())
