"""Processes of ours that others depend on: keepers and the gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable


@runtime_checkable
class Part(Protocol):
    """A backend or gate behind which such a process stands, from its first use on."""

    @property
    def part(self) -> str:
        """What operators know the process by: a word from a small, fixed set."""
        ...

    def attend(self, ended: Callable[[str], None], failed: Callable[[str], None]) -> None:
        """``ended`` hears why, each time that the process ended without having been told to; ``failed`` of each fault
        of its own that ended less than that."""
        ...

    async def restart(self) -> None:
        """Have the process ready again. Raises SandboxFault or GateFault."""
        ...
