"""The agent as a command: ``listen``, ``serve``, ``start``, ``connect``, ``text`` and ``device``.

Its settings are a JSON object::

    key          64 hexadecimal digits; the host proves with it that it may speak to the agent
    lease_s      the agent ends everything when the host did not renew the lease for so long; null: it never does
    user         [uid, gid] of programs and of workers for files, where the agent is root; null: the agent's own
    env          the small environment of programs
    cwd          where programs begin (/workspace)
    python       the interpreter of guests (that of the agent)
    spool        the directory for output that does not stay in memory (/tmp)
    single       one program is started: its end is told when nothing of its tree is left
    timeout_ms   the deadline of programs that are given none (300000)
    nonce        the agent's nonce for the first channel that greets it: a host that knows it proves itself with its
                 greeting, and begins exchanges behind it ("": it makes each of its nonces itself)
    ahead        the agent makes ready when a host has greeted it: begins the interpreter of a guest, and where it is
                 for more than one program imports what guests of commands need (false)
    limits       limits of the agent and all that it starts, by their numbers (setrlimit(2)) ({})
    filters      filters of system calls for the agent and all that it starts, in their order, each in base64 ([])

A PATH that begins with ``@`` names an abstract socket of the sandbox's network: nothing of it is in the file tree.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat
import sys
import time
from binascii import a2b_base64

from . import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    from .kernel import Fork
else:
    import _socket as socket

VARIABLE = "SKILLYARD_AGENT"
_DEFAULTS: dict[str, Any] = {
    "lease_s": None,
    "user": None,
    "env": {},
    "cwd": "/workspace",
    "python": sys.executable,
    "spool": "/tmp",  # noqa: S108 - a directory of the sandbox
    "single": False,
    "timeout_ms": 300_000,
    "nonce": "",
    "ahead": False,
    "limits": {},
    "filters": [],
}
_MOST_SETTINGS = 64 * 1024
_REOPEN_S = 0.1
_LISTENS_S = 10.0
_BACKLOG = 16
_READY = b"ready\n"
_USAGE = "usage: agent listen PATH|fd:N | serve PATH | start PATH | connect PATH | text PATH | device PATH"


def main(arguments: list[str], bundle: str) -> int:
    """Returns the exit status. ``bundle`` is the file that holds guest and agent."""
    if len(arguments) != 2 or arguments[0] not in _MODES:
        return _fail(_USAGE)
    mode, where = arguments
    try:
        return _MODES[mode](where, bundle)
    except (OSError, ValueError) as error:
        return _fail(f"{mode} {where}: {error}")


def _fail(text: str) -> int:
    os.write(2, f"{text}\n".encode("utf-8", "replace"))
    return 64


def _listen(where: str, bundle: str) -> int:
    """Serves a socket in the foreground."""
    settings = _settings()
    if where.startswith("fd:"):
        listener = socket.socket(fileno=int(where[3:]))
        os.set_inheritable(listener.fileno(), False)
    else:
        listener = _bind(where)
    return _serve(settings, bundle, listener)


def _stand(where: str, bundle: str) -> int:
    """Serves a socket in the foreground, and standard input and output as the first channel."""
    return _serve(_settings(), bundle, _bind(where), _own_channel())


def _own_channel() -> tuple[int, int]:
    """Returns standard input and output as other descriptors. Programs find nothing in their places."""
    ends = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3), fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(2):
        os.dup2(nothing, fd)
    os.close(nothing)
    return ends


def _start(where: str, bundle: str) -> int:
    """Serves a socket in the background. One that is served already stays as it is."""
    settings = _settings()
    if where.startswith("@"):
        raise ValueError("start needs a path")
    with open(f"{where}.lock", "wb", opener=_private) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        listener = None if _is_served(where) else _bind(where)
    if listener is None or os.fork() > 0:
        os.write(1, _READY)
        return 0
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)
    os.close(nothing)
    return _serve(settings, bundle, listener)


def _serve(settings: dict[str, Any], bundle: str, listener: socket.socket, first: tuple[int, int] | None = None) -> int:
    from .server import Agent

    agent = Agent(settings, bundle, _protect(settings))
    agent.listen(listener)
    if first is not None:
        agent.serve(first[0], into=first[1])
    agent.loop.run()
    return 0


def _device(where: str, bundle: str) -> int:
    """Serves a character device. After a hang-up it is opened again, until the agent ends."""
    from .server import Agent

    settings = _settings()
    agent = Agent(settings, bundle, _protect(settings))

    def reopen() -> None:
        try:
            fd = os.open(where, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            agent.loop.after(_REOPEN_S, reopen)
            return
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0)):
            os.close(fd)
            agent.loop.after(_REOPEN_S, reopen)
            return
        if os.isatty(fd):
            import termios
            import tty

            tty.setraw(fd, termios.TCSANOW)  # what the host has sent already stays
        agent.serve(fd)

    agent.on_lost = lambda: agent.loop.after(_REOPEN_S, reopen)
    reopen()
    agent.loop.run()
    return 0


def _connect(where: str, _: str) -> int:
    """Joins standard input and output to the socket, until either ends."""
    return _join(where, bytes)


def _text(where: str, _: str) -> int:
    """The same, with each byte of the output as the character of that number, in UTF-8."""
    return join_text(where)


def join_text(where: str, command: int = -1) -> int:
    """Does so until the process of the descriptor ``command`` has ended, too."""
    return _join(where, lambda data: data.decode("latin-1").encode(), command)


def _join(where: str, told: Callable[[bytes], bytes], until: int = -1) -> int:
    from .kernel import be_undumpable

    be_undumpable()  # no program of the same user can write into it, and be spared in its place
    channel = _connected(where)
    ways = {0: channel.fileno(), channel.fileno(): 1}
    poll = select.poll()
    for fd in (*ways, *((until,) if until >= 0 else ())):
        poll.register(fd, select.POLLIN)
    while True:
        for fd, _events in poll.poll():
            data = b"" if fd == until else os.read(fd, 256 * 1024)
            if not data:
                return 0
            view = memoryview(data if fd == 0 else told(data))
            while view:
                view = view[os.write(ways[fd], view) :]


def _connected(where: str) -> socket.socket:
    """Waits a moment where an agent is about to listen on an abstract socket. Raises OSError."""
    until = time.monotonic() + _LISTENS_S
    while True:
        channel = socket.socket(socket.AF_UNIX)
        try:
            channel.connect(_address(where))
        except ConnectionRefusedError:
            channel.close()
            if not where.startswith("@") or time.monotonic() > until:
                raise
            select.select((), (), (), _LISTENS_S / 500)
        else:
            return channel


def _settings() -> dict[str, Any]:
    """Returns the settings, and takes them out of the environment. Raises ValueError."""
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        line = bytearray()
        # A pipe is read no further than the line, since the host's first words may follow; of a file nobody else reads.
        most = _MOST_SETTINGS if stat.S_ISREG(os.fstat(0).st_mode) else 1
        while not line.endswith(b"\n") and len(line) < _MOST_SETTINGS and (piece := os.read(0, most)):
            line += piece
    else:
        line = bytearray(text.encode())
    given = jsontext.decode(line)
    if not isinstance(given, dict) or not given.keys() <= {"key", *_DEFAULTS}:
        raise ValueError("settings: not an object of known names")
    if not isinstance(given.get("key"), str) or len(bytes.fromhex(given["key"])) != 32:
        raise ValueError("settings: the key has 64 hexadecimal digits")
    if not isinstance(given.get("nonce", ""), str):
        raise ValueError("settings: the nonce is a text")
    return {**_DEFAULTS, **given}


def _protect(settings: dict[str, Any]) -> Fork:
    """Keeps other processes of the same user out of this one, and installs the filters."""
    from .kernel import Fork, be_subreaper, be_undumpable, bound_capabilities, filter_calls, limit

    fork = Fork()
    be_undumpable()
    be_subreaper()
    os.environ.clear()
    if settings["user"]:
        bound_capabilities()
    for kind, most in settings["limits"].items():
        limit(int(kind), most)
    for program in settings["filters"]:
        filter_calls(a2b_base64(program, strict_mode=True))
    return fork


def _bind(where: str) -> socket.socket:
    """Makes the socket, in a directory that nobody else enters where the agent makes it."""
    if where.startswith("@"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(_address(where))
        listener.listen(_BACKLOG)
        return listener
    os.makedirs(os.path.dirname(where) or ".", 0o700, exist_ok=True)
    if os.path.lexists(where):
        if not stat.S_ISSOCK(os.lstat(where).st_mode):
            raise ValueError("there is something else than a socket")
        os.unlink(where)
    listener = socket.socket(socket.AF_UNIX)
    usual = os.umask(0o177)
    try:
        listener.bind(where)
    finally:
        os.umask(usual)
    listener.listen(_BACKLOG)
    return listener


def _address(where: str) -> str:
    return f"\0{where[1:]}" if where.startswith("@") else where


def _private(path: str, flags: int) -> int:
    os.makedirs(os.path.dirname(path) or ".", 0o700, exist_ok=True)
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _is_served(where: str) -> bool:
    tried = socket.socket(socket.AF_UNIX)
    try:
        tried.connect(_address(where))
    except OSError:
        return False
    finally:
        tried.close()
    return True


_MODES = {"listen": _listen, "serve": _stand, "start": _start, "connect": _connect, "text": _text, "device": _device}
