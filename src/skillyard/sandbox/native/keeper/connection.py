"""A server's connection to its keeper, on the keeper's loop."""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Callable, Sequence

from skillyard.ipc.channel import CROWDED_S, BadMessage, FrameReader, Header, Outbox, close_all, encode
from skillyard.sandbox.native.keeper.loop import READ, WRITE, Loop, Timer

WITH_NEXT_S = 0.01
"""How long a message waits for the next one, to be sent with it. Each time that the other end wakes costs both ends as
much as a short message itself."""


class Connection:
    """Calls ``on_frame(header, body)`` for each message of a server, and ``on_end()`` once."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        on_frame: Callable[[Connection, Header, bytes], None],
        on_end: Callable[[Connection], None],
    ) -> None:
        self._loop = loop.guarded(lambda _: self.close())
        self._sock = sock
        self._on_frame = on_frame
        self._on_end = on_end
        self._frames = FrameReader()
        self._out = Outbox(sock)
        self._waits = False
        """Whether more is to be sent than the other end has taken."""
        self._later: Timer | None = None
        """Sends what is there when nothing else has done so before."""
        self._crowded = False
        """Whether the kernel takes no descriptors for a moment."""
        self.open = True
        sock.setblocking(False)
        self._loop.watch(sock.fileno(), READ, self._ready)

    def send(self, header: Header, body: bytes = b"", sockets: Sequence[socket.socket] = ()) -> None:
        """Sends a frame. ``sockets`` are closed here once they are sent, or never will be."""
        if not self.open:
            close_all(sockets)
            return
        self._out.put(encode(header, body, len(sockets)), sockets)
        if not (self._waits or self._crowded):
            self._flush()

    def send_with_next(self, header: Header, sockets: Sequence[socket.socket] = ()) -> None:
        """Sends as :meth:`send` does, with the next frame or after WITH_NEXT_S without one."""
        if not self.open:
            close_all(sockets)
            return
        self._out.put(encode(header, sockets=len(sockets)), sockets)
        if self._later is None and not self._waits:
            self._later = self._loop.after(WITH_NEXT_S, self._flush)

    def check(self) -> None:
        """Closes it if the other end is gone, which no event may have told yet."""
        poll = select.poll()
        if self.open:
            poll.register(self._sock.fileno(), select.POLLRDHUP)
            if poll.poll(0):
                self.close()

    def close(self) -> None:
        if self.open:
            self.open = False
            self._loop.forget(self._sock.fileno())
            self._sock.close()
            self._out.drop()
            self._no_later()
            self._on_end(self)

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if self.open and events & ~WRITE:
            self._read()

    def _no_later(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _flush(self) -> None:
        if not self.open:
            return
        self._no_later()
        self._crowded = False
        try:
            waits = not self._out.flush()
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                self.close()
                return
            waits, self._crowded = False, True
            self._later = self._loop.after(CROWDED_S, self._flush)
        if waits != self._waits:
            self._waits = waits
            self._loop.watch(self._sock.fileno(), READ | WRITE if waits else READ, self._ready)

    def _read(self) -> None:
        try:
            data = self._sock.recv(1 << 16)  # without room for descriptors, of which a server sends none
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._frames.feed(data)
        try:
            while self.open and (frame := self._frames.next()) is not None:
                self._on_frame(self, frame[0], frame[1])
        except BadMessage:
            self.close()
