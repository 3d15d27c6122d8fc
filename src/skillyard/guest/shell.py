"""One command: the files that it needs, its output told apart, the files that it leaves.

The command's stdout and stderr go into one log, in the order in which they came. ``\\0`` and a digit mark where the
other stream begins: 1 for stdout, 2 for stderr; ``\\0`` and 0 stand for a NUL of the output. The log begins in stdout,
and has a mark at least every 64 KiB. A program of the sandbox can write anything there, as everywhere.

When the command has ended, every process that it left is ended, and only then its files are looked at.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
import stat
import sys
from contextlib import suppress
from fnmatch import translate

from .errors import SandboxError
from .files.walk import open_directory
from .output_files import MAX_DEPTH, MAX_ENTRIES, Left, is_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from .blobs import Blobs

VIEW = "skill"
_READ = 32 * 1024
"""Bytes of one piece, and of output between two marks."""
_PATIENCE_S = 1.0
"""The wait for processes that cannot be found, where no /proc tells of them."""
_PR_SET_CHILD_SUBREAPER = 36
_NUL, _ESCAPED = b"\0", b"\0" + b"0"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def run(request: Mapping[str, Any], workspace: str, blobs: Blobs) -> dict[str, int]:
    """Returns how the command ended: ``exit_code``, and ``signal`` when one ended it. Raises OSError, SandboxError."""
    command = request["command"]
    top = open_directory(workspace)
    try:
        _copy_tree(request["skills"][command["skill"]]["root"], top, VIEW)
        for blob_id, path in command["inputs"]:
            _bring(top, blobs.path(blob_id), path)
        os.fchdir(_directory(top, command["workdir"].split("/") if command["workdir"] else []))
    finally:
        os.close(top)
    return _followed(_argv(command), {**os.environ, "PATH": _path(), "PWD": os.getcwd(), **command["env"]})


def send_outputs(workspace: str, request: Mapping[str, Any], blobs: Blobs) -> dict[str, object]:
    """Sends the files that the request names; returns notes on the others.

    Each goes under the number of its output, a slash and its path.
    """
    limits = request["files"]
    left = Left(blobs, limits["count"], limits["each_bytes"], limits["bytes"])
    for number, path in enumerate(request["command"]["outputs"]):
        _Search(left, number).send(workspace, path.split("/"))
    notes: dict[str, object] = {"skipped": left.skipped, "more": left.more}
    return {name: value for name, value in notes.items() if value}


def _argv(command: Mapping[str, Any]) -> list[str]:
    program = [sys.executable] if command["language"] == "python" else ["bash"]
    return [*program, "-c", command["text"]]


def _path() -> str:
    own = os.path.dirname(sys.executable)
    others = os.environ.get("PATH") or os.defpath
    return others if others.split(":")[0] == own else f"{own}:{others}"


def _copy_tree(source: str, parent: int, name: str) -> None:
    """Makes a writable copy of a skill. One that is there already stays."""
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        return
    to, of = open_directory(name, parent), os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _copy_below(of, to)
    finally:
        os.close(to)
        os.close(of)


def _copy_below(of: int, to: int) -> None:
    for entry in os.listdir(of):
        mode = os.stat(entry, dir_fd=of, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            os.mkdir(entry, 0o755, dir_fd=to)
            below, made = open_directory(entry, of), open_directory(entry, to)
            try:
                _copy_below(below, made)
            finally:
                os.close(below)
                os.close(made)
        elif stat.S_ISREG(mode):
            _copy(os.open(entry, _FILE, dir_fd=of), to, entry, 0o755 if mode & 0o111 else 0o644)


def _copy(source: int, parent: int, name: str, mode: int) -> None:
    try:
        made = os.open(name, _NEW, mode, dir_fd=parent)
        try:
            while data := os.read(source, 1 << 17):
                _write_all(made, data)
        finally:
            os.close(made)
    finally:
        os.close(source)


def _bring(top: int, source: str, path: str) -> None:
    *above, name = path.split("/")
    parent = _directory(top, above)
    try:
        _copy(os.open(source, os.O_RDONLY | os.O_CLOEXEC), parent, name, 0o644)
    except FileExistsError:
        raise SandboxError(f"the input cannot be written to {path!r}: something is there already") from None
    finally:
        os.close(parent)


def _directory(top: int, parts: list[str]) -> int:
    """Opens a directory below ``top``, and makes it when it is missing. Raises OSError."""
    fd = os.dup(top)
    for part in parts:
        try:
            with suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=fd)
            below = open_directory(part, fd)
        finally:
            os.close(fd)
        fd = below
    return fd


class _Log:
    """The log of both streams, on descriptor 1."""

    def __init__(self) -> None:
        self._stream = b"1"
        self._unmarked = 0

    def write(self, stream: bytes, data: bytes) -> None:
        mark = b""
        if stream != self._stream or self._unmarked + len(data) > _READ:
            mark, self._stream, self._unmarked = _NUL + stream, stream, 0
        self._unmarked += len(data)
        _write_all(1, mark + data.replace(_NUL, _ESCAPED))


def _followed(argv: list[str], env: dict[str, str]) -> dict[str, int]:
    """Runs a program and passes its output on until it has ended and all that it left is gone."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    log, pipes = _Log(), {}
    ends = []
    for stream in (b"1", b"2"):
        mine, its = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(mine, False)
        pipes[mine] = stream
        ends.append(its)
    try:
        leader = _spawned(argv, env, ends)
    except OSError as error:
        log.write(b"2", f"{argv[0]}: {error.strerror}\n".encode())
        return {"exit_code": 126 if isinstance(error, PermissionError) else 127}
    finally:
        for fd in ends:
            os.close(fd)
    status = _until_end(leader, wake, pipes, log)
    _end_all(leader, wake)
    for fd in list(pipes):
        while _pass_on(fd, pipes, log):
            pass
    code = os.waitstatus_to_exitcode(status)
    return {"exit_code": code} if code >= 0 else {"exit_code": 128 - code, "signal": -code}


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


def _until_end(leader: int, wake: int, pipes: dict[int, bytes], log: _Log) -> int:
    """Passes output on until the leader ended; returns its status."""
    poll = select.poll()
    for fd in (wake, *pipes):
        poll.register(fd, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == wake:
                os.read(wake, 4096)
            elif not _pass_on(fd, pipes, log):
                poll.unregister(fd)
        while reaped := _reaped():
            if reaped[0] == leader:
                return reaped[1]


def _reaped() -> tuple[int, int] | None:
    """Returns a child that ended, with its status."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _pass_on(fd: int, pipes: dict[int, bytes], log: _Log) -> bool:
    """Passes a piece on. Returns False when there is none: at the end, which closes the pipe, or for now."""
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
    log.write(pipes[fd], data)
    return True


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


class _Search:
    """Finds the files of one output and sends them. No link is followed."""

    def __init__(self, left: Left, number: int) -> None:
        self._left = left
        self._number = number
        self._entries = MAX_ENTRIES
        self._sent: set[str] = set()

    def send(self, workspace: str, parts: list[str]) -> None:
        top = open_directory(workspace)
        try:
            self._below(top, parts, [], exact=not any(map(_is_pattern, parts)))
        finally:
            os.close(top)

    def _below(self, fd: int, parts: list[str], path: list[str], *, exact: bool) -> None:
        here, rest = parts[0], parts[1:]
        if here == "**":
            self._below(fd, rest or ["*"], path, exact=False)
        for name in [here] if exact else self._names(fd, here):
            try:
                mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
                self._entry(fd, name, mode, parts if here == "**" else rest, [*path, name], exact=exact)
            except FileNotFoundError:
                self._skip([*path, *parts], "missing", exact=exact)
            except OSError:
                self._skip([*path, name], "unread", exact=True)

    def _entry(self, fd: int, name: str, mode: int, rest: list[str], path: list[str], *, exact: bool) -> None:
        if not is_plain(name):
            self._skip(path, "name", exact=True)
        elif rest and stat.S_ISDIR(mode) and len(path) <= MAX_DEPTH:
            below = open_directory(name, fd)
            try:
                self._below(below, rest, path, exact=exact)
            finally:
                os.close(below)
        elif rest:
            self._skip([*path, *rest], "missing" if stat.S_ISREG(mode) else "kind", exact=exact)
        elif stat.S_ISREG(mode):
            told = self._told(path)
            if told not in self._sent:
                self._sent.add(told)
                self._left.file(os.open(name, _FILE, dir_fd=fd), told)
        elif not stat.S_ISDIR(mode) or exact:
            self._skip(path, "kind", exact=True)

    def _names(self, fd: int, pattern: str) -> list[str]:
        fits = re.compile(translate("*" if pattern == "**" else pattern)).match
        names = sorted(filter(fits, os.listdir(fd)))
        if len(names) > self._entries:
            self._skip(["…"], "entries", exact=True)
        names = names[: self._entries]
        self._entries -= len(names)
        return names

    def _skip(self, path: list[str], why: str, *, exact: bool) -> None:
        """Tells of a file that is not sent. A pattern promises nothing of names that do not fit."""
        if exact:
            self._left.skip(self._told(path), why)

    def _told(self, path: list[str]) -> str:
        return f"{self._number}/{'/'.join(path)}"


def _is_pattern(part: str) -> bool:
    return any(mark in part for mark in "*?[")


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
