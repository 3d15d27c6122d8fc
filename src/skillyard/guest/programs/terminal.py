"""A program on a terminal of the sandbox's own (pty(7)).

Two processes have a part. The *relay* opens the terminal and passes bytes between it and its own streams. Its child
becomes the program, as the leader of a session that the terminal controls. The host writes frames to the standard input
of the relay: one byte of type, four bytes of big-endian payload length, payload.

    D  bytes                 input, as typed
    W  2 bytes, 2 bytes      the size from now on: rows, columns
    E                        the end of input: what a user says with Ctrl-D

Where the input itself ends, the terminal is hung up. So it is when the program has ended: then the relay passes on what
is there still, and ends as the program did.
"""

from __future__ import annotations

import errno
import os
import select
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import NoReturn
else:
    import _signal as signal  # the module signal takes longer than an agent may begin

DATA, SIZE, END = b"D", b"W", b"E"
MOST_SIDE = 0xFFFF
"""The most rows or columns that the kernel has a place for (ioctl_tty(2))."""
_HEAD = struct.Struct(">cI")
_SIDES = struct.Struct(">HH")
_PIECE = 64 * 1024
_MOST_AHEAD = 256 * 1024
"""Bytes of input that wait for the program before no more is read."""
_MOST_AT_END = 1 << 20
"""Bytes that are passed on after the end. A process that was left behind may write for ever."""
_FAILED = 126
_ICANON, _LFLAG, _CHARACTERS = 0o2, 3, 6


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(payload)) + payload


def size_frame(rows: int, columns: int) -> bytes:
    """Raises ValueError for a size that no terminal has."""
    if not fits((rows, columns)):
        raise ValueError(f"a terminal has 1 to {MOST_SIDE} rows and columns")
    return frame(SIZE, _SIDES.pack(rows, columns))


def fits(size: object) -> bool:
    """Returns whether ``size`` is a pair of rows and columns."""
    pair = isinstance(size, list | tuple) and len(size) == 2
    return pair and all(type(side) is int and 1 <= side <= MOST_SIDE for side in size)  # type: ignore[attr-defined]


def run(rows: int, columns: int, execute: Callable[[], object]) -> NoReturn:
    """Calls ``execute``, which becomes the program, on a new terminal, and ends as that does."""
    try:
        master, slave = os.openpty()
        _set_size(master, rows, columns)
    except OSError as error:
        os.write(2, f"no terminal can be opened: {error.strerror}\n".encode())
        os._exit(_FAILED)
    wake, waker = os.pipe()
    for fd in (wake, waker, master, 0, 1):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    child = os.fork()
    if child == 0:
        _become(slave, execute)
    os.close(slave)
    _end_like(_Relay(master, wake, child).run())


def _become(slave: int, execute: Callable[[], object]) -> NoReturn:
    import fcntl
    import termios

    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        for fd in range(3):
            os.dup2(slave, fd)
        os.closerange(3, 1 << 16)
        execute()
    finally:
        os._exit(_FAILED)


def _set_size(fd: int, rows: int, columns: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class _Relay:
    """Passes bytes on until the program has ended."""

    def __init__(self, master: int, wake: int, child: int) -> None:
        self._master, self._wake, self._child = master, wake, child
        self._frames = bytearray()
        self._typed = bytearray()
        """Input that the terminal has no room for yet."""
        self._shown = b""
        """Output that the host has no room for yet."""
        self._last = b"\n"
        self._silent = False
        """Whether no process has the terminal open any more."""

    def run(self) -> int:
        """Returns the program's status."""
        while True:
            ready = dict(self._poll())
            if self._wake in ready:
                os.read(self._wake, 4096)
                pid, status = os.waitpid(self._child, os.WNOHANG)
                if pid:
                    self._finish()
                    return status
            if 0 in ready and not self._hear():
                os._exit(_FAILED)  # the terminal goes with this process, and is hung up
            if ready.get(self._master, 0) & ~select.POLLOUT:
                self._look()
            self._type()
            self._show()

    def _poll(self) -> list[tuple[int, int]]:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if len(self._typed) < _MOST_AHEAD:
            poll.register(0, select.POLLIN)
        if self._shown:
            poll.register(1, select.POLLOUT)
        wanted = (0 if self._shown else select.POLLIN) | (select.POLLOUT if self._typed else 0)
        if wanted and not self._silent:
            poll.register(self._master, wanted)
        return poll.poll()

    def _hear(self) -> bool:
        """Takes frames; returns False when there are no more."""
        try:
            data = os.read(0, _PIECE)
        except BlockingIOError:
            return True
        self._frames += data
        while len(self._frames) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._frames)
            if len(self._frames) < _HEAD.size + size:
                break
            payload = bytes(self._frames[_HEAD.size : _HEAD.size + size])
            del self._frames[: _HEAD.size + size]
            self._heard(kind, payload)
        return bool(data)

    def _heard(self, kind: bytes, payload: bytes) -> None:
        if kind == DATA and payload:
            self._typed += payload
            self._last = payload[-1:]
        elif kind == SIZE:
            _set_size(self._master, *_SIDES.unpack(payload))
        elif kind == END:
            self._typed += self._end_of_input()

    def _end_of_input(self) -> bytes:
        """Returns the keys that end the input: within a line the first ends that alone."""
        import termios

        modes = termios.tcgetattr(self._master)
        key: bytes = modes[_CHARACTERS][termios.VEOF]
        within = modes[_LFLAG] & _ICANON and self._last not in (b"\n", b"\r", key)
        self._last = key
        return b"" if key == b"\0" else key * (2 if within else 1)

    def _type(self) -> None:
        while self._typed and not self._silent:
            try:
                del self._typed[: os.write(self._master, self._typed[:_PIECE])]
            except BlockingIOError:
                return
            except OSError:
                self._hushed()

    def _look(self) -> int:
        """Takes output; returns how much there was."""
        if self._shown or self._silent:
            return 0
        try:
            self._shown = os.read(self._master, _PIECE)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno == errno.EIO:  # the last that had it open has closed it
                self._hushed()
                return 0
            raise
        return len(self._shown)

    def _hushed(self) -> None:
        self._silent = True
        self._typed.clear()

    def _show(self) -> None:
        while self._shown:
            try:
                self._shown = self._shown[os.write(1, self._shown) :]
            except BlockingIOError:
                return

    def _finish(self) -> None:
        os.set_blocking(1, True)
        self._show()
        left = _MOST_AT_END
        while left > 0 and (size := self._look()):
            left -= size
            self._show()


def _end_like(status: int) -> NoReturn:
    if not os.WIFSIGNALED(status):
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    number = os.WTERMSIG(status)
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)
