"""An optional ability of sandboxes: a way out through the gate that can be made and changed while they run."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from skillyard.domain.network.session import Egress


@runtime_checkable
class Networked(Protocol):
    async def plug(self, egress: Egress) -> None:
        """Listen on what ``egress`` names and hand it to the gate: after a policy was widened, after an attach, or when
        the gate was restarted. Ports that are listened on already stay. Raises SandboxGone, GateFault."""
        ...
