"""What anybody may read of a process that does not come back: no path of the host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from skillyard.domain.errors import GateFault
from skillyard.engine.observer import Event, PartRestarted, PartVersion
from skillyard.engine.parts import Parts
from skillyard.engine.tasks import Tasks
from tests.unit.engine.conftest import ManualClock

pytestmark = pytest.mark.anyio


class Broken:
    """Fails to start as often as it has faults."""

    part = "gate"

    def __init__(self, *faults: Exception) -> None:
        self._faults = list(faults)
        self.lost: Callable[[str], None] = print
        self.told: Callable[[str], None] = print

    older = "one of version 1"

    def attend(self, ended: Callable[[str], None], _failed: Callable[[str], None], told: Callable[[str], None]) -> None:
        self.lost, self.told = ended, told

    async def restart(self) -> None:
        if self._faults:
            raise self._faults.pop(0)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (FileNotFoundError(2, "No such file", "/home/ann/x"), "its start failed: FileNotFoundError"),
        (GateFault("it is full"), "it is full"),
    ],
)
async def test_a_fault_of_its_start_tells_no_path(fault: Exception, told: str) -> None:
    events: list[Event] = []
    tasks, part = Tasks(), Broken(fault)
    parts = Parts([part], events.append, ManualClock(), tasks)
    part.lost("it ended")
    assert parts.dead == {"gate": "it ended"}
    async with asyncio.timeout(5):
        await asyncio.sleep(0)
        assert parts.dead == {"gate": told}
        await tasks.drain()
    assert parts.dead == {}
    assert isinstance(events[-1], PartRestarted)
    part.told("it has ended")
    assert events[-1:] == [PartVersion("gate", "it has ended")]
    assert parts.older == {"gate": "one of version 1"}
