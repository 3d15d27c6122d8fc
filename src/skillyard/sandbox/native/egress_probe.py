"""Whether a sandbox of this host can be plugged into a gate: listened in, and found by a connection to an address that
is not its own."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from skillyard.domain.errors import SandboxFault
from skillyard.domain.sandbox.guarantees import Level, Protection
from skillyard.ipc.frames import close_all

if TYPE_CHECKING:
    from skillyard.sandbox.native.backend import NativeBackend

ADDRESS, PORT = "203.0.113.7", 443
"""Of documentation (RFC 5737): nobody else has it."""

CODE = f"""
if sys.argv[1:]:
    try: socket.create_connection(({ADDRESS!r}, {PORT}), 2)
    except OSError: pass
"""
"""In the sandbox, with an argument when there is somebody to find."""


@dataclass(slots=True)
class Attempt:
    """``why`` there is nothing to find, or empty."""

    why: str = ""
    sockets: list[socket.socket] = field(default_factory=list)

    def found(self) -> Protection:
        """What the gate would have seen, once the program in the sandbox has ended."""
        if self.why:
            return missing(self.why)
        meant = [_meant(sock) for sock in self.sockets if sock.type == socket.SOCK_STREAM]
        if not any(host.removeprefix("::ffff:") == ADDRESS for host in meant):
            return missing("a connection from a test sandbox did not arrive")
        return Protection(Level.KERNEL, by="a network namespace in which every address leads to the gate's sockets")

    def close(self) -> None:
        close_all(self.sockets)


async def attempt(backend: NativeBackend, handle: str) -> Attempt:
    if not backend.has_gate:
        return Attempt("the server has no gate to plug sandboxes into")
    try:
        asked = {"streams": [PORT], "datagrams": [PORT]}
        return Attempt(sockets=await backend.open_sockets(handle, asked))
    except SandboxFault as error:
        return Attempt(f"no sockets can be opened in a sandbox: {error.message}")


def missing(why: str) -> Protection:
    return Protection(Level.MISSING, why=why)


def _meant(listener: socket.socket) -> str:
    """The address that the first connection was made to."""
    try:
        connection, _ = listener.accept()
    except OSError:
        return ""
    with connection:
        return str(connection.getsockname()[0])
