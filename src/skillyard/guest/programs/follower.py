"""Runs programs one after the other, passes their output on, and ends what they leave."""

from __future__ import annotations

import ctypes
import os
import select
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Protocol

    class Watch(Protocol):
        """Looks after a program while it runs."""

        def hear(self, stream: bytes, data: bytes) -> None: ...

        def patience_ms(self) -> int | None: ...

        def is_late(self) -> bool: ...


_READ = 32 * 1024
"""Bytes of one piece, and of output between two marks."""
_PATIENCE_S = 1.0
"""The wait for processes that cannot be found, where no /proc tells of them."""
_PR_SET_CHILD_SUBREAPER = 36
_NUL, _ESCAPED = b"\0", b"\0" + b"0"


class Log:
    """The log of both streams, on descriptor 1."""

    def __init__(self) -> None:
        self._stream = b"1"
        self._unmarked = 0

    def write(self, stream: bytes, data: bytes) -> None:
        mark = b""
        if stream != self._stream or self._unmarked + len(data) > _READ:
            mark, self._stream, self._unmarked = _NUL + stream, stream, 0
        self._unmarked += len(data)
        write_all(1, mark + data.replace(_NUL, _ESCAPED))


class Follower:
    """Runs programs, one after the other, and passes their output on."""

    def __init__(self) -> None:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self.log = Log()

    def follow(self, argv: list[str], env: dict[str, str], watch: Watch | None = None) -> dict[str, object]:
        """Returns how a program ended, when all that it left is gone."""
        pipes: dict[int, bytes] = {}
        ends = []
        for stream in (b"1", b"2"):
            mine, its = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(mine, False)
            pipes[mine] = stream
            ends.append(its)
        try:
            leader = _spawned(argv, env, ends)
        except OSError as error:
            self.log.write(b"2", f"{argv[0]}: {error.strerror}\n".encode())
            for fd in pipes:
                os.close(fd)
            return {"exit_code": 126 if isinstance(error, PermissionError) else 127}
        finally:
            for fd in ends:
                os.close(fd)
        status = self._until_end(leader, pipes, watch)
        if status is None:
            os.kill(leader, signal.SIGKILL)
        _end_all(leader, self._wake)
        for fd in list(pipes):
            while self._pass_on(fd, pipes, None):
                pass
        for fd in pipes:
            os.close(fd)
        if status is None:
            return {"exit_code": 128 + signal.SIGKILL, "signal": int(signal.SIGKILL), "not_ready": True}
        code = os.waitstatus_to_exitcode(status)
        return {"exit_code": code} if code >= 0 else {"exit_code": 128 - code, "signal": -code}

    def _until_end(self, leader: int, pipes: dict[int, bytes], watch: Watch | None) -> int | None:
        """Passes output on until the leader ended; returns its status. None for a service that is not ready in time."""
        poll = select.poll()
        for fd in (self._wake, *pipes):
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll(None if watch is None else watch.patience_ms()):
                if fd == self._wake:
                    os.read(fd, 4096)
                elif not self._pass_on(fd, pipes, watch):
                    poll.unregister(fd)
            while reaped := _reaped():
                if reaped[0] == leader:
                    return reaped[1]
            if watch is not None and watch.is_late():
                return None

    def _pass_on(self, fd: int, pipes: dict[int, bytes], watch: Watch | None) -> bool:
        """Passes a piece on. Returns False when none has come yet, and at the end, which closes the pipe."""
        if fd not in pipes:
            return False
        try:
            data = os.read(fd, _READ)
        except BlockingIOError:
            return False
        if not data:
            os.close(fd)
            del pipes[fd]
            return False
        self.log.write(pipes[fd], data)
        if watch is not None:
            watch.hear(pipes[fd], data)
        return True


def _spawned(argv: list[str], env: dict[str, str], ends: list[int]) -> int:
    for fd in _open_descriptors():
        os.set_inheritable(fd, False)
    return os.posix_spawnp(
        argv[0],
        argv,
        env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, ends[0], 1),
            (os.POSIX_SPAWN_DUP2, ends[1], 2),
        ],
        setpgroup=0,
        setsigmask=[],
        setsigdef=[number for number in signal.Signals if number not in (signal.SIGKILL, signal.SIGSTOP)],
    )


def _open_descriptors() -> Iterator[int]:
    """Yields the open descriptors above 2."""
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        numbers = list(range(3, 256))
    for fd in numbers:
        if fd > 2:
            try:
                os.fstat(fd)
            except OSError:
                continue
            yield fd


def _reaped() -> tuple[int, int] | None:
    """Returns a child that ended, with its status."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _end_all(leader: int, wake: int) -> None:
    """Ends what the command left. All of it has become, or becomes, a child of this process."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid:
            continue
        children = _children()
        for child in children or ():
            os.kill(child, signal.SIGKILL)
        if children is None:
            _kill_group(leader)
        if select.select([wake], [], [], _PATIENCE_S)[0]:
            os.read(wake, 4096)
        elif children is None:
            return


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _children() -> list[int] | None:
    """Returns our children; None where nothing tells of them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        pass
    found = []
    try:
        names = os.listdir("/proc")
    except OSError:
        return None
    for name in filter(str.isdigit, names):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                row = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if len(row) > 1 and int(row[1]) == os.getpid():
            found.append(int(name))
    return found or None


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
