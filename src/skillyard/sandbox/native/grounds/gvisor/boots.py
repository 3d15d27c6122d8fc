"""Starting runscs: a few at once, since each takes a processor for a while; on the platform that works."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from skillyard.sandbox.native.grounds.gvisor import jail
from skillyard.sandbox.native.grounds.gvisor.place import GvisorPlace
from skillyard.sandbox.native.grounds.gvisor.runsc import Runsc
from skillyard.sandbox.native.keeper.ground import Warmth
from skillyard.sandbox.native.keeper.sandbox import Sandbox

MakePlan = Callable[[Sandbox, GvisorPlace], jail.Plan]
Failed = Callable[[Sandbox, str], None]


class Boots:
    """The queue before all of a keeper's sandboxes."""

    def __init__(self, runsc: Runsc, most: int) -> None:
        self.runsc = runsc
        self._most = most
        self._waiting: deque[tuple[Sandbox, GvisorPlace, MakePlan, Failed]] = deque()
        self._starting: set[GvisorPlace] = set()

    def add(self, sandbox: Sandbox, place: GvisorPlace, plan: MakePlan, failed: Failed) -> None:
        self._waiting.append((sandbox, place, plan, failed))
        self._go_on()

    def is_ready(self, place: GvisorPlace) -> None:
        self.runsc.worked()
        self._settled(place)

    def is_dead(self, place: GvisorPlace, why: str, *, was_ready: bool) -> None:
        if not was_ready:
            self.runsc.failed(place.platform, why)
        self._settled(place)

    def close(self) -> None:
        """Starts none of those that wait."""
        waiting = list(self._waiting)
        self._waiting.clear()
        for sandbox, place, _, failed in waiting:
            place.not_started(sandbox, [])
            failed(sandbox, "the keeper ends")

    def _settled(self, place: GvisorPlace) -> None:
        self._starting.discard(place)
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and len(self._starting) < self._most:
            sandbox, place, plan, failed = self._waiting.popleft()
            self._starting.add(place)
            try:
                _start(sandbox, place, plan(sandbox, place))
            except OSError as error:
                self._starting.discard(place)
                failed(sandbox, f"runsc cannot be started: {error.strerror or error}")
            except BaseException:
                self._starting.discard(place)
                raise


def _start(sandbox: Sandbox, place: GvisorPlace, plan: jail.Plan) -> None:
    """Raises OSError; the sandbox is then as dead as one that ended."""
    groups = place.group.join_descriptors() if place.group is not None else []
    into = groups[0] if place.group is not None and place.group.version == 2 else -1
    try:
        started = jail.start(plan, sandbox.inside_control.fileno(), place.errors, [] if into >= 0 else groups, into)
    except OSError:
        place.not_started(sandbox, groups)
        raise
    place.started(sandbox, *started, plan.runsc.platform, groups)


class Runscs:
    """The source of sandboxes of one environment and group. Each starts with an interpreter of its own."""

    def __init__(self, boots: Boots, plan: MakePlan, failed: Failed) -> None:
        self._boots = boots
        self._plan = plan
        self._failed = failed

    def order(self, sandbox: Sandbox) -> None:
        assert isinstance(sandbox.place, GvisorPlace)
        self._boots.add(sandbox, sandbox.place, self._plan, self._failed)

    @property
    def idle(self) -> bool:
        """There is nothing to close."""
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
