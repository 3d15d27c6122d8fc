"""The sandbox's end of its way out: ports of loopback whose connections the host takes.

The host begins one exchange for each connection, before there is one, so the agent opens nothing by itself, and the
host alone says how many there are. Further connections wait in the kernel. The listeners belong to no channel: when a
channel is lost its connections end, and the next one takes those that came meanwhile.
"""

from __future__ import annotations

import errno
import struct

from . import wire
from .programs import Refused
from .relay import Relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections import deque

    from .channel import Channel
    from .loop import Loop, Timer
else:
    import _socket as socket
    from _collections import deque

_BACKLOG = 128
_CROWDED_S = 0.1
_PATIENCE_S = 30.0
"""How long connections wait for a host that takes none. Then they are reset."""
_RST_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER, socket(7)


class WaysOut:
    """The ports that the agent listens on."""

    MOST = 16

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._doors: dict[object, Listener] = {}

    def __contains__(self, port: object) -> bool:
        return port in self._doors

    def listen(self, port: object) -> None:
        """Listens on a port. One that is listened on already stays as it is. Raises Refused."""
        if port in self._doors:
            return
        if not isinstance(port, int) or not 0 < port < 65536:
            raise Refused("invalid", "a port is a number from 1 to 65535")
        if len(self._doors) >= self.MOST:
            raise Refused("busy", f"{self.MOST} ports are listened on")
        try:
            from socket import create_server  # which most agents never need

            sock = create_server(("127.0.0.1", port), backlog=_BACKLOG)
        except OSError as error:
            raise Refused("taken", f"port {port} of the sandbox cannot be had: {error.strerror or error}") from None
        self._doors[port] = Listener(self._loop, sock)

    def accept(self, channel: Channel, number: int, port: object, window: object) -> Accepted:
        """Returns the exchange of the next connection. Raises Refused."""
        if port not in self._doors:
            raise Refused("invalid", "nobody listens on this port")
        if not isinstance(window, int) or not wire.LEAST_WINDOW <= window <= wire.WINDOW:
            raise Refused("invalid", "a window has from 4 KiB to 256 KiB")
        return Accepted(channel, number, self._loop, self._doors[port], window)


class Listener:
    """One port, and the exchanges that wait for a connection."""

    def __init__(self, loop: Loop, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._loop, self._sock = loop, sock
        self._waiting: deque[Accepted] = deque()
        self._patience: Timer | None = None
        self._watch()

    def wait(self, exchange: Accepted) -> None:
        self._waiting.append(exchange)
        self._watch()

    def leave(self, exchange: Accepted) -> None:
        if exchange in self._waiting:
            self._waiting.remove(exchange)
            self._watch()

    def _watch(self) -> None:
        """Takes connections while exchanges wait for them, else leaves them to the kernel."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._waiting:
            self._loop.watch(self._sock.fileno(), self._accept)
        else:
            self._loop.watch(self._sock.fileno())
            self._patience = self._loop.after(_PATIENCE_S, self._turn_away)

    def _turn_away(self) -> None:
        """Resets those that nobody takes, until somebody does."""
        self._patience = None
        self._loop.watch(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            end, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            self._loop.watch(self._sock.fileno())
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._loop.after(_CROWDED_S, self._watch)
            return
        if self._waiting:
            self._waiting.popleft().begin(end)
            if not self._waiting:
                self._watch()
        else:
            _reset(end)


class Accepted(Relay):
    """A connection that a program made to the way out. It is reset where the host gives it up."""

    def __init__(self, channel: Channel, number: int, loop: Loop, door: Listener, window: int) -> None:
        super().__init__(channel, number, loop)
        self.credit = window
        self._door = door
        door.wait(self)

    def begin(self, end: socket.socket) -> None:
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._end = end
        self.send(b"")  # tells the host that there is a connection
        self._watch()

    def closed(self) -> None:
        self._door.leave(self)
        if self._end is not None and not (self._read_over and self._shut):
            end, self._end = self._end, None
            self._loop.watch(end.fileno())
            _reset(end)
        super().closed()


def _reset(end: socket.socket) -> None:
    """Closes a connection so that its program is told of an abort, and not of an end."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
    end.close()
