"""The processes that runs depend on: which of them are dead, and their new start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Protocol, runtime_checkable

from skillyard.domain.errors import SkillyardError
from skillyard.engine.observer import Fault, Observer, PartLost, PartRestarted, PartVersion
from skillyard.engine.tasks import Tasks
from skillyard.ports.clock import Clock


@runtime_checkable
class Part(Protocol):
    """A backend or gate behind which such a process stands, from its first use on."""

    @property
    def part(self) -> str:
        """Returns the operators' name of the process: a word from a small, fixed set."""
        ...

    @property
    def older(self) -> str:
        """Returns which processes of earlier versions it serves beside that one; empty for none."""
        ...

    def attend(self, ended: Callable[[str], None], failed: Callable[[str], None], told: Callable[[str], None]) -> None:
        """Reports each unexpected end to ``ended``, with the reason; smaller faults to ``failed``.

        ``told`` hears that a process of an earlier version is served, or has ended."""
        ...

    async def restart(self) -> None:
        """Starts the process again. Raises SandboxFault or GateFault."""
        ...


_FIRST_S, _MOST_S = 0.2, 10.0
"""Seconds between two attempts to start one again; each pause is twice the one before."""


class PartFault(SkillyardError):
    """A fault of a keeper's or the gate's own that did not end its process."""


class Parts:
    """Watches the processes and starts dead ones again. ``dead`` has the reason for each that does not run."""

    def __init__(self, parts: Iterable[object], emit: Observer, clock: Clock, tasks: Tasks) -> None:
        self.dead: dict[str, str] = {}
        self._emit = emit
        self._clock = clock
        self._tasks = tasks
        self._restarts: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()
        self._parts: list[Part] = []
        for part in parts:
            if isinstance(part, Part):
                part.attend(partial(self._ended, part), partial(self._failed, part), partial(self._told, part))
                self._parts.append(part)

    @property
    def older(self) -> dict[str, str]:
        """Returns the processes of earlier versions that are served, by the name of their part."""
        return {part.part: text for part in self._parts if (text := part.older)}

    def _ended(self, part: Part, why: str) -> None:
        self._emit(PartLost(part.part, why))
        if part.part not in self.dead:
            self.dead[part.part] = why
            if not self._over.is_set():
                restart = self._tasks.spawn(self._restart(part), f"restart of {part.part}")
                self._restarts.add(restart)
                restart.add_done_callback(self._restarts.discard)

    async def close(self) -> None:
        """Starts nothing again. An attempt that is under way ends first, so that its process can be stopped."""
        self._over.set()
        if self._restarts:
            await asyncio.wait(self._restarts)

    def _failed(self, part: Part, text: str) -> None:
        self._emit(Fault(part.part, PartFault(text), part=part.part))

    def _told(self, part: Part, text: str) -> None:
        self._emit(PartVersion(part.part, text))

    async def _restart(self, part: Part) -> None:
        began, pause, attempts = self._clock.monotonic(), _FIRST_S, 1
        while not self._over.is_set():
            try:
                await part.restart()
            except Exception as error:  # noqa: BLE001 - tried again, whatever it was
                # Anybody may ask for it: other messages name paths.
                known = isinstance(error, SkillyardError)
                self.dead[part.part] = str(error) if known else f"its start failed: {type(error).__name__}"
                self._emit(Fault(part.part, error, part=part.part))
            else:
                del self.dead[part.part]
                self._emit(PartRestarted(part.part, attempts, round(self._clock.monotonic() - began, 3)))
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._over.wait()
            pause, attempts = min(2 * pause, _MOST_S), attempts + 1
