"""Messages with descriptors over a connected Unix socket: four bytes of length, then JSON, the descriptors with the
first byte (unix(7), SCM_RIGHTS). The server and its gate each have one end."""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import json
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

Message = dict[str, Any]

MOST_SOCKETS = 128
"""In one message; the kernel carries 253."""
_MOST_BYTES = 64 << 20
_READ = 1 << 18
_HEAD = struct.Struct("!IH")
_FDS_SPACE = socket.CMSG_SPACE(253 * 4)
_INT = array.array("i").itemsize
_CROWDED_S = 0.002
"""Before descriptors are sent again when too many are on their way (ETOOMANYREFS)."""


class Channel:
    """``on_message`` gets each message and the descriptors that came with it, which are then its own; ``on_lost`` is
    called once, when the other end is gone."""

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[Message, list[int]], None],
        on_lost: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_message = on_message
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._in = bytearray()
        self._fds: deque[int] = deque()
        self._out: deque[tuple[memoryview, Sequence[socket.socket]]] = deque()
        self._retry: asyncio.TimerHandle | None = None
        self.alive = True
        self._loop.add_reader(sock, self._readable)

    @property
    def behind(self) -> bool:
        """Whether something that was sent is still here."""
        return bool(self._out)

    def send(self, message: Message, sockets: Sequence[socket.socket] = ()) -> None:
        """``sockets`` are given away: closed here once they are on their way, or when the other end is gone."""
        if not self.alive:
            _close_all(sockets)
            return
        body = json.dumps(message, separators=(",", ":")).encode()
        self._out.append((memoryview(_HEAD.pack(len(body), len(sockets)) + body), sockets))
        if len(self._out) == 1:
            self._flush()

    def close(self) -> None:
        """Idempotent; ``on_lost`` is not called."""
        if not self.alive:
            return
        self.alive = False
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        if self._retry is not None:
            self._retry.cancel()
        for _, sockets in self._out:
            _close_all(sockets)
        self._out.clear()
        while self._fds:
            os.close(self._fds.popleft())
        self._sock.close()

    def _flush(self) -> None:
        try:
            while self._out:
                data, sockets = self._out[0]
                sent = self._send_some(data, sockets)
                _close_all(sockets)
                if sent < len(data):
                    self._out[0] = (data[sent:], ())
                else:
                    self._out.popleft()
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._sock, self._flush)
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:
                self._loop.remove_writer(self._sock)
                self._retry = self._loop.call_later(_CROWDED_S, self._flush)
            else:
                self._lose()
        else:
            self._loop.remove_writer(self._sock)

    def _send_some(self, data: memoryview, sockets: Sequence[socket.socket]) -> int:
        if not sockets:
            return self._sock.send(data)
        rights = array.array("i", [sock.fileno() for sock in sockets])
        return self._sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])

    def _readable(self) -> None:
        try:
            raw, ancillary, flags, _ = self._sock.recvmsg(_READ, _FDS_SPACE, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._lose()
            return
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                got = array.array("i")
                got.frombytes(data[: len(data) - len(data) % _INT])
                self._fds.extend(got)
        # Truncated: the process has no room for the descriptors, and can no longer tell which are whose.
        if not raw or flags & socket.MSG_CTRUNC:
            self._lose()
            return
        self._in += raw
        self._take()

    def _take(self) -> None:
        while self.alive and len(self._in) >= _HEAD.size:
            size, count = _HEAD.unpack_from(self._in)
            end = _HEAD.size + size
            if size > _MOST_BYTES or (len(self._in) >= end and count > len(self._fds)):
                self._lose()
                return
            if len(self._in) < end:
                return
            try:
                message = json.loads(self._in[_HEAD.size : end])
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                self._lose()
                return
            del self._in[:end]
            self._pass_on(message, [self._fds.popleft() for _ in range(count)])

    def _pass_on(self, message: Message, fds: list[int]) -> None:
        """Passes each message on; one that raises does not keep the next ones from their reader."""
        try:
            self._on_message(message, fds)
        except Exception as error:  # noqa: BLE001 - told of
            self._loop.call_exception_handler({"message": "a message could not be taken", "exception": error})

    def _lose(self) -> None:
        if self.alive:
            self.close()
            self._on_lost()


def _close_all(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        with contextlib.suppress(OSError):
            sock.close()
