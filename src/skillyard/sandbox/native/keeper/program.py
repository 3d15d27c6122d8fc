"""A started program of a sandbox: its pipes, its spools of output, its deadline, its ending."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from skillyard.guest.programs import terminal
from skillyard.sandbox.native.inside.walls import DONE
from skillyard.sandbox.native.keeper.follower import Follower
from skillyard.sandbox.native.keeper.loop import READ, WRITE, Timer, Turns
from skillyard.sandbox.native.keeper.spool import IN_MEMORY, Line, Spool

_PIECE = 64 * 1024
_PIECES_A_TURN = 16
_PIECES_AT_END = 64
"""More than a pipe or a socket holds. A writer that is left behind may go on for ever."""
STDIN_BUFFER = 1 << 20
UNREAD = 64 << 20
"""Bytes of the channel that wait for the server. With more, the guest waits for the server, too."""


@dataclass(frozen=True, slots=True)
class Caps:
    """Bytes that are kept of a program.

    ``log`` bounds stdout and stderr together, or stdout alone where ``stderr`` bounds stderr. A program that writes
    more is ended with the outcome ``output``, unless the logs are a ``ring``, in which each has a bound of its own, or
    programs ``wait`` for their one reader. Then nothing is kept but what that one has not taken.
    """

    log: int
    channel: int
    stderr: int | None = None
    ring: bool = False
    wait: bool = False


class Program:
    """Calls ``on_over`` with the reason when a cap is passed."""

    def __init__(
        self, loop: Turns, id: str, spool_dir: str, caps: Caps, on_over: Callable[[Program, str], None]
    ) -> None:
        self._loop = loop
        self.id = id
        self.caps = caps
        self._on_over = on_over
        stderr = caps.log if caps.stderr is None else caps.stderr
        self.spools: dict[str, Spool | Line] = {
            "stdout": Line() if caps.wait else Spool(spool_dir, kept=caps.log if caps.ring else None),
            "stderr": Line() if caps.wait else Spool(spool_dir, kept=stderr if caps.ring else None),
            "channel": Spool(spool_dir, held_back=len(DONE)),
        }
        self._readers: dict[int, str] = {}
        self._full: dict[str, int] = {}
        """Pipes that are not read, by stream: their reader has not taken what came before."""
        self._channel: socket.socket | None = None
        self._taken = 0
        self._frame = 0
        """Where the next frame of the channel begins."""
        self._paused = False
        self._stdin = -1
        self._on_terminal = False
        self._pending = bytearray()
        self._finish_input = False
        self.followers: dict[int, Follower] = {}
        """Readers of its output, by the number of each."""
        self.on_done: Callable[[Program], None] | None = None
        """Called when a guest says that it came to its end in order."""
        self.on_input_room: list[Callable[[], None]] = []
        self.started_at = time.monotonic()
        self.deadline: Timer | None = None
        self.tied = False
        """Whether it ends with the server that started it, also in a sandbox that does not."""
        self.kept = False
        """Whether it is spared when other programs of its sandbox are ended."""
        self.request = b""
        """The request of a guest, until it is known to have reached a worker."""
        self.forced: tuple[str, str] | None = None
        """Outcome and reason, where it was ended before it ended by itself."""
        self.ending: dict[str, Any] | None = None

    def taken(self, stream: str, offset: int) -> None:
        """Learns that the server has all of ``stream`` before ``offset``."""
        if stream != "channel":
            self._taken_of_line(stream, offset)
            return
        self._taken = max(self._taken, offset)
        if self._paused and self._unread() <= UNREAD // 2:
            self._paused = False
            self._watch_channel()

    def _taken_of_line(self, stream: str, offset: int) -> None:
        """Goes on to read a pipe whose program waited for the reader."""
        line = self.spools[stream]
        if isinstance(line, Line):
            line.forget(offset)
            if stream in self._full and not line.full:
                self._watch_pipe(self._full.pop(stream), stream)

    def read_pipe(self, fd: int, stream: str) -> None:
        os.set_blocking(fd, False)
        self._readers[fd] = stream
        self._watch_pipe(fd, stream)

    def _watch_pipe(self, fd: int, stream: str) -> None:
        self._loop.watch(fd, READ, lambda _: self._drain(fd, stream, _PIECES_A_TURN))

    def talk(self, channel: socket.socket, request: bytes | None) -> None:
        """Hands over a guest's whole request, then only listens. None is one that the server hands over by itself."""
        channel.setblocking(False)
        self._channel = channel
        self._readers[channel.fileno()] = "channel"
        if request is None:
            self._watch_channel()
            return
        self._pending += request
        self._finish_input = True
        self._push()

    def open_stdin(self, fd: int, *, on_terminal: bool = False) -> None:
        os.set_blocking(fd, False)
        self._stdin, self._on_terminal = fd, on_terminal
        self._loop.watch(fd, 0, self._push)

    def write_stdin(self, data: bytes) -> bool:
        """Passes ``data`` on; returns False when nobody can read it any more."""
        if self._stdin < 0 or self._finish_input:
            return False
        self._pending += terminal.frame(terminal.DATA, data) if self._on_terminal else data
        self._push()
        return self._stdin >= 0

    def close_stdin(self) -> None:
        if self._stdin >= 0 and self._on_terminal:
            self._pending += terminal.frame(terminal.END)
            self._push()
        elif self._stdin >= 0:
            self._finish_input = True
            self._push()

    def resize(self, rows: int, columns: int) -> bool:
        """Gives its terminal another size; returns False where it has none. Raises ValueError."""
        if not self._on_terminal:
            return False
        self._pending += terminal.size_frame(rows, columns)
        self._push()
        return True

    @property
    def input_room(self) -> bool:
        return len(self._pending) < STDIN_BUFFER

    def is_small(self) -> bool:
        """Returns whether all its output can be told with its ending."""
        return all(spool.length - spool.first <= IN_MEMORY for spool in self.spools.values())

    def hang_up(self) -> None:
        """Closes the streams of a worker that is gone, for another start."""
        for fd, stream in list(self._readers.items()):
            self._close_reader(fd, stream)
        for spool in self.spools.values():
            spool.closed = False
        self._pending.clear()

    def end_of_output(self) -> None:
        """Takes the output that is there, and closes: writers are gone or no longer count."""
        for fd, stream in list(self._readers.items()):
            self._drain(fd, stream, _PIECES_AT_END)
            if fd in self._readers:
                self._close_reader(fd, stream)
        for spool in self.spools.values():
            spool.closed = spool.final = True
        self._push_output()
        self._close_stdin()
        if self.deadline is not None:
            self.deadline.cancel()

    def drop(self) -> None:
        self.end_of_output()
        for follower in list(self.followers.values()):
            follower.end(gone="the sandbox is gone")
        for spool in self.spools.values():
            spool.drop()

    def _input_fd(self) -> int:
        return self._channel.fileno() if self._channel is not None else self._stdin

    def _push(self, _: int = 0) -> None:
        fd = self._input_fd()
        try:
            while self._pending:
                del self._pending[: os.write(fd, self._pending[:_PIECE])]
        except BlockingIOError:
            self._watch_input(fd, True)
            return
        except OSError:
            self._pending.clear()
            self._finish_input = True
        self._watch_input(fd, False)
        if self._finish_input:
            self._close_stdin()
        ready, self.on_input_room = self.on_input_room, []
        for call in ready:
            call()

    def _unread(self) -> int:
        return self.spools["channel"].length - self._taken

    def _watch_channel(self) -> None:
        """Watches the channel; of one that is paused the end alone.

        A done writer sleeps until it is ended. The rest then fits into the socket, and is taken.
        """
        if self._channel is not None:
            events = 0 if self._paused else READ | (WRITE if self._pending else 0)
            self._loop.watch(self._channel.fileno(), events, self._channel_ready)

    def _watch_input(self, fd: int, wanted: bool) -> None:
        if self._channel is not None:
            self._watch_channel()
        elif self._stdin >= 0:
            self._loop.watch(fd, WRITE if wanted else 0, self._push)

    def _channel_ready(self, events: int) -> None:
        if events & WRITE:
            self._push()
        if self._channel is not None and events & ~WRITE:
            self._drain(self._channel.fileno(), "channel", _PIECES_A_TURN)
        if self._channel is not None and self._unread() > UNREAD:
            self._paused = True
            self._watch_channel()

    def _close_stdin(self) -> None:
        if self._channel is not None:
            try:
                self._channel.shutdown(socket.SHUT_WR)
            except OSError:
                return  # the guest closed it first
        elif self._stdin >= 0:
            self._loop.forget(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

    def _push_output(self) -> None:
        for follower in list(self.followers.values()) if self.followers else ():
            follower.pump()

    def _drain(self, fd: int, stream: str, pieces: int) -> None:
        self._take(fd, stream, pieces)
        self._push_output()

    def _take(self, fd: int, stream: str, pieces: int) -> None:
        for _ in range(pieces):
            if self._stands_still(fd, stream, pieces):
                return
            try:
                data = os.read(fd, _PIECE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._close_reader(fd, stream)
                return
            self._keep(stream, data)
            if stream == "channel" and self._says_done():
                self._close_reader(fd, stream)
                return

    def _says_done(self) -> bool:
        """Returns whether a guest's short output ends with DONE, before its channel ends."""
        spool = self.spools["channel"]
        if self.on_done is None or spool.length > IN_MEMORY:
            return False
        while self._frame + len(DONE) <= spool.length:
            head = spool.read(self._frame, len(DONE))
            self._frame += len(DONE) + int.from_bytes(head[1:], "big")
            if head == DONE and self._frame == spool.length:
                return True
        return False

    def _stands_still(self, fd: int, stream: str, pieces: int) -> bool:
        """Returns whether a pipe is read no further for now. At the end all that is in it is taken."""
        line = self.spools[stream]
        if pieces == _PIECES_AT_END or not (isinstance(line, Line) and line.full):
            return False
        self._full[stream] = fd
        self._loop.forget(fd)
        return True

    def _keep(self, stream: str, data: bytes) -> None:
        spool = self.spools[stream]
        what, room = self._room(stream)
        try:
            spool.append(data[:room] if room < len(data) else data)
        except OSError as error:
            self._on_over(self, f"the host cannot store more output: {error.strerror}")
            return
        if room < len(data):
            self._on_over(self, f"more than {what}")

    def _room(self, stream: str) -> tuple[str, int]:
        """Returns what bounds a stream, and how many bytes are left of it."""
        caps, lengths = self.caps, {name: spool.length for name, spool in self.spools.items()}
        if stream == "channel":
            return f"{caps.channel} bytes on the result channel", max(0, caps.channel - lengths["channel"])
        if caps.ring or caps.wait:
            return "", sys.maxsize
        if caps.stderr is None:
            used = lengths["stdout"] + lengths["stderr"]
            return f"{caps.log} bytes on stdout and stderr together", max(0, caps.log - used)
        cap = caps.stderr if stream == "stderr" else caps.log
        return f"{cap} bytes on {stream}", max(0, cap - lengths[stream])

    def _close_reader(self, fd: int, stream: str) -> None:
        self._readers.pop(fd, None)
        self._full.pop(stream, None)
        self._loop.forget(fd)
        if stream == "channel" and self._channel is not None:
            self._channel.close()
            self._channel = None
        else:
            os.close(fd)
        orderly = stream == "channel" and self.spools[stream].strip(DONE)
        self.spools[stream].closed = True
        if self.caps.wait and stream != "channel":
            self.spools[stream].final = True  # its reader hears at once that the program closed it
        if orderly and self.on_done is not None:
            self.on_done(self)


def open_pipes(*, stdin: bool) -> tuple[list[int], list[int]]:
    """Opens a program's standard streams. Returns our ends and the program's.

    Raises OSError; nothing is open then.
    """
    ours: list[int] = []
    theirs: list[int] = []
    try:
        if stdin:
            reading, writing = os.pipe2(os.O_CLOEXEC)
            ours.append(writing)
            theirs.append(reading)
        else:
            theirs.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        for _ in ("stdout", "stderr"):
            reading, writing = os.pipe2(os.O_CLOEXEC)
            ours.append(reading)
            theirs.append(writing)
    except OSError:
        close_descriptors((*ours, *theirs))
        raise
    return ours, theirs


def close_descriptors(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)
