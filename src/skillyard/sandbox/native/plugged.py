"""A native sandbox that can be plugged into a gate: the optional ability of :mod:`skillyard.ports.networked`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from typing import Any

from skillyard.domain.errors import GateFault
from skillyard.domain.network.session import DNS_PORT, PROXY_PORT, Egress
from skillyard.ipc.frames import close_all
from skillyard.ports.gate import Plug
from skillyard.sandbox.native.link import Link
from skillyard.sandbox.native.sandbox import NativeSandbox

_OLD_GATE_S = 2.0
"""How long a gate that served this sandbox before may take to end."""
_LOOK_AGAIN_S = 0.02


def listen(egress: Egress) -> dict[str, Any]:
    """What the keeper is asked to open for it."""
    return {"streams": sorted({*egress.ports, DNS_PORT, PROXY_PORT}), "datagrams": [DNS_PORT]}


class PluggedSandbox(NativeSandbox):
    def __init__(self, link: Link, handle: str, enforced: dict[str, str], plug: Plug) -> None:
        super().__init__(link, handle, enforced)
        self._plug = plug
        self._plugging = asyncio.Lock()
        self._served: set[int] = set()
        """Ports that were handed to the gate."""

    async def plug(self, egress: Egress) -> None:
        """Listen on what ``egress`` names and hand it to the gate. Ports that are taken already stay as they are: the
        gate has them, or a program of the sandbox took them before. Raises SandboxGone, GateFault."""
        async with self._plugging:
            await self._hand_over(egress, await self._open(egress))

    async def plug_first(self, egress: Egress, sockets: Sequence[socket.socket]) -> None:
        """Hand over what the keeper opened when it lent the sandbox. Whoever asked for the same sandbox meanwhile got
        no sockets, and waits here until the gate has them. Raises SandboxGone, GateFault."""
        async with self._plugging:
            if sockets:
                await self._hand_over(egress, sockets)
            elif not self._served:
                await self._hand_over(egress, await self._open(egress))

    async def _hand_over(self, egress: Egress, sockets: Sequence[socket.socket]) -> None:
        try:
            await self._plug.plug(egress.session, sockets)
        finally:
            close_all(sockets)
        self._served.update(egress.ports, (DNS_PORT, PROXY_PORT))

    async def _open(self, egress: Egress) -> list[socket.socket]:
        """An earlier server's gate, which nobody here knows, may be about to end: its ports come free then."""
        clock = asyncio.get_running_loop().time
        asked = listen(egress)
        until = clock() + _OLD_GATE_S
        sockets: list[socket.socket] = []
        try:
            while True:
                answer, _ = await self._link.answer({"op": "plug", "handle": self._handle, "listen": asked})
                sockets += answer.get("sockets", ())
                taken = self._strange(answer["taken"], sockets)
                if not taken or clock() > until:
                    break
                await asyncio.sleep(_LOOK_AGAIN_S)
            if DNS_PORT in taken:
                raise GateFault("another gate listens in this sandbox")
        except BaseException:
            close_all(sockets)
            raise
        return sockets

    def _strange(self, taken: Iterable[int], opened: Sequence[socket.socket]) -> set[int]:
        ours = {sock.getsockname()[1] for sock in opened}
        return set(taken) - self._served - ours
