"""The runs that this engine works on right now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from skillyard.engine.redact import Redactor
from skillyard.ports.sandbox import Process


@dataclass(slots=True, eq=False)
class ActiveRun:
    """One run between its admission and its last record. ``done`` gives the Run object to those who wait
    for the same run; ``cancel_reason`` is set once somebody asked it to end."""

    run_id: str
    principal: str
    redactor: Callable[[], Redactor]
    process: Process | None = None
    cancel_reason: str | None = None
    done: asyncio.Future[dict[str, Any]] | None = None
    waiters: list[asyncio.Future[None]] = field(default_factory=list)

    async def cancel(self, reason: str) -> None:
        """End the process tree; what is not started yet will not be."""
        if self.cancel_reason is None:
            self.cancel_reason = reason
        if self.process is not None:
            await self.process.kill(reason)
