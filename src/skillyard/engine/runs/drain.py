"""Draining a server before it is stopped: new work is refused, and attached runs end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from skillyard.domain.errors import Busy
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.sandbox.spec import Owner
from skillyard.engine.driver import ActiveRuns
from skillyard.engine.method import BOOLEAN, INTEGER, Method, answer, described, obj
from skillyard.engine.shapes import STRINGS
from skillyard.ports.records import RecordStore

RETRY_MS = 10_000
LONGEST_MS = 30_000


def _ignore(_: bool) -> None:
    return


class Drain:
    """Whether the server takes new work. ``calls`` counts the calls at work that started some; the table keeps it."""

    def __init__(self, active: ActiveRuns, records: RecordStore) -> None:
        self.on = False
        self.calls = 0
        self.changed: Callable[[bool], None] = _ignore
        """Is told each change."""
        self._active = active
        self._records = records
        self.idle = asyncio.Event()
        """Is set when the last of these calls has ended."""

    def set(self, on: bool) -> None:
        """Refuses new work from now on, or takes it again."""
        if on != self.on:
            self.on = on
            self.changed(on)

    def refusal(self) -> Busy:
        return Busy("the server is draining and takes no new work; come again later", retry_after_ms=RETRY_MS)

    async def stays(self) -> Collection[str]:
        """Returns the ids of the runs that outlive the server."""
        return {record.run_id for record in await self._records.unfinished() if record.owner is Owner.TASK}

    async def attached(self, stays: Collection[str]) -> int:
        """Returns how many calls and runs end with the server."""
        return max(self.calls, len(self._active.keys() - set(stays)))

    async def wait(self, seconds: float) -> None:
        """Returns when nothing is left that ends with the server, or after so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.calls:
                    self.idle.clear()
                    await self.idle.wait()
                stays = await self.stays()
                endings = [run.ending() for run_id, run in self._active.items() if run_id not in stays]
                if endings:
                    await asyncio.wait(endings)


async def drain_server(drain: Drain, _: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    drain.set(not params["undo"])
    if drain.on and params["wait_ms"]:
        await drain.wait(params["wait_ms"] / 1000)
    stays = await drain.stays()
    return {"draining": drain.on, "attached": await drain.attached(stays), "detached": sorted(stays)}


TABLE: tuple[Method[Any], ...] = (
    Method(
        name="server.drain",
        doc="Refuse new work with Busy until the server is stopped; runs at work go on. Detached runs outlive it.",
        params=obj(
            {
                "undo": described(BOOLEAN, "take new work again", default=False),
                "wait_ms": described(
                    {**INTEGER, "minimum": 0, "maximum": LONGEST_MS},
                    "answer when nothing is left that ends with the server, or after so long",
                    default=0,
                ),
            }
        ),
        example={"undo": True},
        result=answer(
            {
                "draining": BOOLEAN,
                "attached": described(INTEGER, "calls and runs that end with the server"),
                "detached": described(STRINGS, "ids of the runs that outlive it"),
            }
        ),
        scope=Scope.ADMIN,
        errors=(),
        surface="operator",
        repeatable=True,
        waits=True,
        handler=drain_server,
        service=Drain,
    ),
)
