"""An optional ability of sandboxes: a network that can be given and changed while they run."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from skillyard.domain.network.session import Egress


@runtime_checkable
class Networked(Protocol):
    async def plug(self, egress: Egress) -> None:
        """Listens on the ports of ``egress`` and hands them to the gate.

        It is called after a policy was widened, after an attach, and when the gate was restarted. Ports that are
        listened on already stay. Raises SandboxGone, GateFault.
        """
        ...
