"""Exchanges that are byte streams both ways: to ports, and to workers for files."""

from __future__ import annotations

import errno
import os

from .channel import Channel, Exchange
from .programs import CHUNK, Refused
from .supervisor import close_others

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import Callable
    from typing import NoReturn

    from .loop import Loop
    from .start import Place
else:
    import _signal as signal
    import _socket as socket

_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_HANGING_S = 5.0


class Relay(Exchange):
    """Joins an exchange and a socket. The result comes when both directions are over."""

    def __init__(self, channel: Channel, number: int, loop: Loop, end: socket.socket | None = None) -> None:
        super().__init__(channel, number)
        self._loop = loop
        self._end = end
        self._to_write = bytearray()
        self._host_ended = self._shut = self._read_over = False
        if end is not None:
            end.setblocking(False)

    def data(self, data: bytes) -> None:
        if self._shut:
            self.grant(len(data))
            return
        self._to_write += data
        self._write()

    def ended(self) -> None:
        self._host_ended = True
        self._write()

    def pump(self) -> None:
        self._watch()

    def closed(self) -> None:
        if self._end is not None:
            self._loop.watch(self._end.fileno())
            self._end.close()
            self._end = None
        self._to_write.clear()

    def _watch(self) -> None:
        if self._end is not None:
            read = self._read if self.room and not self._read_over else None
            self._loop.watch(self._end.fileno(), read, self._write if self._to_write else None)

    def _read(self) -> None:
        if self._end is None:
            return
        if not (room := self.room):  # another source has taken it since this one was found ready
            self._watch()
            return
        try:
            data = self._end.recv(room)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.send(data)
        else:
            self._read_over = True
            self.finish_data()
        self._watch()
        self._perhaps_over()

    def _write(self) -> None:
        if self._end is None:
            return
        try:
            while self._to_write:
                written = self._end.send(memoryview(self._to_write)[:CHUNK])
                del self._to_write[:written]
                self.grant(written)
            if self._host_ended and not self._shut:
                self._shut = True
                self._end.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:  # nobody reads it: what is left goes nowhere
            self._shut = True
            self.grant(len(self._to_write))
            self._to_write.clear()
        self._watch()
        self._perhaps_over()

    def _perhaps_over(self) -> None:
        if self._read_over and self._shut:
            self.reply({})


class Forward(Relay):
    """A connection to a TCP port on loopback."""

    def __init__(self, channel: Channel, number: int, loop: Loop, port: object) -> None:
        """Raises Refused."""
        if not isinstance(port, int) or not 0 < port < 65536:
            raise Refused("invalid", "a port is a number from 1 to 65535")
        super().__init__(channel, number, loop)
        self._port = port
        self._left = list(_LOOPBACK)
        self._trying: socket.socket | None = None
        self._next()

    def _next(self) -> None:
        while self._left:
            family, address = self._left.pop(0)
            try:
                end = socket.socket(family, socket.SOCK_STREAM)
            except OSError:
                continue
            end.setblocking(False)
            error = end.connect_ex((address, self._port))
            if error in (0, errno.EINPROGRESS):
                self._loop.watch(end.fileno(), write=lambda end=end: self._connected(end))  # type: ignore[misc]
                self._trying = end
                return
            end.close()
        raise Refused("refused", f"nobody listens on port {self._port} of the sandbox")

    def _connected(self, end: socket.socket) -> None:
        self._loop.watch(end.fileno())
        self._trying = None
        if end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or end.getsockname() == end.getpeername():
            end.close()
            try:
                self._next()
            except Refused as refused:
                self.fail(refused)
            return
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._end = end
        self.send(b"")  # tells the host that there is a connection
        self._write()

    def closed(self) -> None:
        if self._trying is not None:
            self._loop.watch(self._trying.fileno())
            self._trying.close()
            self._trying = None
        super().closed()


class Workers:
    """Workers for files: forks of the agent with the user of programs, one for each exchange."""

    MOST = 32
    MOST_ENDING = 96
    """Further workers whose exchange is over, and whose end the kernel has not told yet."""

    def __init__(self, loop: Loop, place: Place) -> None:
        self._loop, self._place = loop, place
        self._pids: set[int] = set()
        self._open = 0

    def relay(self, channel: Channel, number: int) -> Relay:
        """Starts a worker. It ends with its exchange. Raises Refused."""
        if self._open >= self.MOST or len(self._pids) >= self.MOST + self.MOST_ENDING:
            raise Refused("busy", f"{self.MOST} requests for files are served in this sandbox")
        ours, theirs = socket.socketpair()
        try:
            pid = os.fork()
        except OSError as error:
            ours.close()
            theirs.close()
            raise Refused("busy", f"no process can be started: {error.strerror}") from None
        if pid == 0:
            _work(theirs.fileno(), self._place)
        theirs.close()
        self._pids.add(pid)
        self._open += 1
        return _Worker(channel, number, self._loop, ours, lambda: self._over(pid))

    def _over(self, pid: int) -> None:
        self._open -= 1
        self._loop.after(_HANGING_S, lambda: self._end(pid))

    def reaped(self, pid: int) -> bool:
        """Returns whether the child that ended was a worker."""
        found = pid in self._pids
        self._pids.discard(pid)
        return found

    def pids(self) -> set[int]:
        return set(self._pids)

    def end(self) -> None:
        for pid in tuple(self._pids):
            self._end(pid)

    def _end(self, pid: int) -> None:
        if pid in self._pids:
            os.kill(pid, signal.SIGKILL)


class _Worker(Relay):
    """The stream of a worker, which is ended if it goes on after the exchange."""

    def __init__(
        self, channel: Channel, number: int, loop: Loop, end: socket.socket, over: Callable[[], object]
    ) -> None:
        super().__init__(channel, number, loop, end)
        self._when_over = over

    def closed(self) -> None:
        first = self._end is not None
        super().closed()
        if first:
            self._when_over()


def _work(fd: int, place: Place) -> NoReturn:
    """Serves files in this child of the agent until its socket ends."""
    try:
        from ..files.serving import Port, serve

        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(fd, 0)
        close_others({0, *place.kept})
        if (user := place.user) is not None:
            os.setgroups([])
            os.setgid(user[1])
            os.setuid(user[0])
        os.umask(0o022)
        serve(Port(0, 0))
    finally:
        os._exit(0)
