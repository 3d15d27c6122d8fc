"""Starting runscs: a few at once, since each takes a processor for a while; on the platform that works."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from skillyard.sandbox.native.grounds.gvisor import jail
from skillyard.sandbox.native.grounds.gvisor.place import GvisorBox
from skillyard.sandbox.native.grounds.gvisor.runsc import Runsc
from skillyard.sandbox.native.keeper.zygotes.zygote import Order, Warmth

MakePlan = Callable[[GvisorBox], jail.Plan]
Failed = Callable[[GvisorBox, str], None]


class Boots:
    """The queue before all of a keeper's sandboxes."""

    def __init__(self, runsc: Runsc, most: int) -> None:
        self.runsc = runsc
        self._most = most
        self._waiting: deque[tuple[GvisorBox, MakePlan, Failed]] = deque()
        self._starting: set[GvisorBox] = set()

    def add(self, box: GvisorBox, plan: MakePlan, failed: Failed) -> None:
        self._waiting.append((box, plan, failed))
        self._go_on()

    def is_ready(self, box: GvisorBox) -> None:
        self.runsc.worked()
        self._settled(box)

    def is_dead(self, box: GvisorBox, why: str) -> None:
        if box.ready_at is None:
            self.runsc.failed(box.platform, why)
        self._settled(box)

    def close(self) -> None:
        """What has not begun will not."""
        waiting = list(self._waiting)
        self._waiting.clear()
        for box, _, failed in waiting:
            box.not_started([])
            failed(box, "the keeper ends")

    def _settled(self, box: GvisorBox) -> None:
        self._starting.discard(box)
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and len(self._starting) < self._most:
            box, plan, failed = self._waiting.popleft()
            self._starting.add(box)
            try:
                _start(box, plan(box))
            except OSError as error:
                self._starting.discard(box)
                failed(box, f"runsc cannot be started: {error.strerror or error}")


def _start(box: GvisorBox, plan: jail.Plan) -> None:
    """Raises OSError; the box is then as dead as one that ended."""
    groups = box.group.join_descriptors() if box.group is not None else []
    into = groups[0] if box.group is not None and box.group.version == 2 else -1
    try:
        started = jail.start(plan, box.inside_control.fileno(), box.errors, [] if into >= 0 else groups, into)
    except OSError:
        box.not_started(groups)
        raise
    box.started(*started, plan.runsc.platform, groups)


class Moorings:
    """Where sandboxes of one environment and group come from."""

    def __init__(self, boots: Boots, plan: MakePlan, failed: Failed) -> None:
        self._boots = boots
        self._plan = plan
        self._failed = failed

    def order(self, order: Order) -> None:
        assert isinstance(order.box, GvisorBox)
        self._boots.add(order.box, self._plan, self._failed)

    @property
    def idle(self) -> bool:
        """There is nothing to close: each sandbox has an interpreter of its own."""
        return False

    @property
    def pids(self) -> Sequence[int]:
        return ()

    def weigh(self) -> int:
        return 0

    def warm(self, then: Callable[[Warmth], None]) -> None:
        """There is none to warm up."""
        then(Warmth())

    def close(self) -> None:
        self._boots.close()
