"""One end of a stream of frames in an asyncio loop."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence

from skillyard.ipc.frames import BESIDE, MAX_HEADER, FrameReader, Header, Outbox, close_all, encode
from skillyard.ipc.packets import descriptors
from skillyard.ipc.strict import BadMessage

_READ = 1 << 20
_CROWDED_S = 0.002
"""Before descriptors are sent again when too many are on their way (ETOOMANYREFS)."""


class Channel:
    """Sends and receives frames on a connected Unix socket.

    ``on_frame`` gets header, body and descriptors of each frame; the descriptors are then its own. ``on_lost`` is
    called once, when the other end is gone or breaks the form of frames."""

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[Header, bytes, list[int]], None],
        on_lost: Callable[[], None],
        max_header: int = MAX_HEADER,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(max_header)
        self._out = Outbox(sock)
        self._retry: asyncio.TimerHandle | None = None
        self._waits = False
        """Whether the socket is watched for room to write."""
        self.alive = True
        self._loop.add_reader(sock.fileno(), self._readable)

    @property
    def behind(self) -> bool:
        """Whether sent frames have not left yet."""
        return bool(self._out)

    def send(self, header: Header, body: bytes = b"", sockets: Sequence[socket.socket] = ()) -> None:
        """Sends a frame.

        ``sockets`` are given away: closed here once they are sent, or never will be."""
        if not self.alive:
            close_all(sockets)
            return
        data, idle = encode(header, body, len(sockets)), not self._out
        if idle and not sockets:
            # Most frames leave at once, and never wait in the outbox.
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._lose()
                return
            if sent == len(data):
                return
            data = data[sent:]
        self._out.put(data, sockets)
        if idle:
            self._flush()

    def close(self) -> None:
        """Closes the socket without calling ``on_lost``. Idempotent."""
        if not self.alive:
            return
        self.alive = False
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        if self._retry is not None:
            self._retry.cancel()
        self._out.drop()
        self._reader.close()
        self._sock.close()

    def _flush(self) -> None:
        try:
            waits = not self._out.flush()
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                self._lose()
                return
            waits = False
            self._retry = self._loop.call_later(_CROWDED_S, self._flush)
        if waits != self._waits:
            self._waits = waits
            if waits:
                self._loop.add_writer(self._sock.fileno(), self._flush)
            else:
                self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        try:
            data, beside, flags, _ = self._sock.recvmsg(_READ, BESIDE, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._lose()
            return
        self._reader.feed(data, descriptors(beside) if beside else ())
        # Truncated: the process has no room for the descriptors, and can no longer tell which frame they belong to.
        if not data or flags & socket.MSG_CTRUNC:
            self._lose()
            return
        try:
            while (frame := self._reader.next()) is not None:
                self._take(*frame)
        except BadMessage:
            self._lose()

    def _take(self, header: Header, body: bytes, received: list[int]) -> None:
        """Passes a frame on; one that raises does not keep the next ones from their reader."""
        try:
            self._on_frame(header, body, received)
        except Exception as error:  # noqa: BLE001 - reported
            self._loop.call_exception_handler({"message": "a frame could not be taken", "exception": error})

    def _lose(self) -> None:
        if self.alive:
            self.close()
            self._on_lost()
