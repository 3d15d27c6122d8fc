"""One connection out of a sandbox, from its acceptance to its end, and what is done for it."""

from __future__ import annotations

import asyncio
import contextvars

from skillyard.gate.relay.stream import Stream

_VISIT: contextvars.ContextVar[Visit | None] = contextvars.ContextVar("visit", default=None)


class Visit:
    def __init__(self, client: Stream) -> None:
        self.client = client
        self.task: asyncio.Task[None] | None = None

    def enter(self) -> None:
        """What this task and its children reach is for this visit."""
        _VISIT.set(self)

    def end(self, fault: Exception) -> None:
        self.client.abort(fault)
        if self.task is not None:
            self.task.cancel()


def current_visit() -> Visit | None:
    return _VISIT.get()
