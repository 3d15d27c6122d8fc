"""The runs at work in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from skillyard.engine.network.run_network import RunNetwork
from skillyard.engine.secrets.redact import Redactor
from skillyard.ports.sandbox import Process


@dataclass(slots=True, eq=False)
class ActiveRun:
    """One run between its first record and its last. ``cancel_reason`` is set once somebody asked it to end;
    ``redactor`` makes a fresh one for each reading of its log."""

    run_id: str
    principal: str
    redactor: Callable[[], Redactor]
    network: RunNetwork | None = None
    process: Process | None = None
    cancel_reason: str | None = None
    _waiters: list[asyncio.Future[None]] = field(default_factory=list)

    async def cancel(self, reason: str) -> None:
        """End the process tree; what is not started yet will not be."""
        if self.cancel_reason is None:
            self.cancel_reason = reason
        if self.process is not None:
            await self.process.kill(reason)

    def ending(self) -> asyncio.Future[None]:
        """Done when the last record is written."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def wake(self) -> None:
        """Tell everybody who waits for the end."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()


class ActiveRuns(dict[str, ActiveRun]):
    """The runs at work by their ids."""

    def forget(self, active: ActiveRun) -> None:
        """The run's last record is written."""
        self.pop(active.run_id, None)
        active.wake()
