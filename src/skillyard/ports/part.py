"""Processes of ours that others depend on: keepers and the gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable


@runtime_checkable
class Part(Protocol):
    """A backend or gate behind which such a process stands, from its first use on."""

    @property
    def part(self) -> str:
        """Returns the operators' name of the process: a word from a small, fixed set."""
        ...

    def attend(self, ended: Callable[[str], None], failed: Callable[[str], None]) -> None:
        """Reports each unexpected end to ``ended``, with the reason; smaller faults to ``failed``."""
        ...

    async def restart(self) -> None:
        """Starts the process again. Raises SandboxFault or GateFault."""
        ...
