"""The calls ``socket``, ``bind`` and ``listen`` of sandboxes whose ports are forwarded.

They wait for the keeper (seccomp_unotify(2)), which finds out whose they are, reads each argument once and acts on what
it read. It rests after each call longer than it took, so that a flood of calls leaves it to others.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import stat
import time
from collections.abc import Iterator

from skillyard.ipc import packets
from skillyard.sandbox.native.grounds.landlock.ports import KeeperPorts, SandboxPorts
from skillyard.sandbox.native.grounds.landlock.watch import eyes_of
from skillyard.sandbox.native.keeper.loop import READ, Loop
from skillyard.sandbox.native.keeper.watch.processes import read
from skillyard.sandbox.native.linux import kernel, supervision
from skillyard.sandbox.native.linux.supervision import Call
from skillyard.sandbox.native.linux.syscall_numbers import numbers

_REST = 4
"""The next call waits so many times as long as the last one took."""
_LEAST_ADDRESS, _MOST_ADDRESS = 16, 128
_KINDS = socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
_CALLS = {numbers(kernel.ARCH)[name]: name for name in ("socket", "bind", "listen")} if kernel.SUPPORTED else {}


class Calls:
    """Decides the calls of all sandboxes of a keeper, by ``ports``."""

    def __init__(self, loop: Loop, ports: KeeperPorts) -> None:
        self._loop = loop
        self._ports = ports

    def supervise(self, sock: socket.socket) -> None:
        """Decides the calls of a zygote's sandboxes. The supervisor's descriptor of them will come on ``sock``."""

        def take(_: int) -> None:
            self._loop.forget(sock.fileno())
            try:
                got = packets.receive_raw(sock)
            finally:
                sock.close()
            for fd in got[1] if got is not None else ():
                self._watch(fd)

        sock.setblocking(False)
        self._loop.watch(sock.fileno(), READ, take)

    def _watch(self, fd: int) -> None:
        self._loop.watch(fd, READ, lambda events: self._ready(fd, events))

    def _ready(self, fd: int, events: int) -> None:
        began = time.monotonic()
        self._loop.forget(fd)
        if not events & READ:
            os.close(fd)  # none of its sandboxes is left
            return
        try:
            self._decide(fd, supervision.receive(fd))
        except FileNotFoundError:
            pass  # its thread was killed meanwhile
        finally:
            self._loop.after(_REST * (time.monotonic() - began), lambda: self._watch(fd))

    def _decide(self, fd: int, call: Call) -> None:
        """Ends a call. None stays without an answer. Raises FileNotFoundError when its thread was killed."""
        error = 0
        try:
            self._do(fd, call)
        except OSError as refused:
            error = refused.errno or errno.EPERM
        except Exception as fault:  # noqa: BLE001 - a program waits for the answer
            self._loop.report(fault)
            error = errno.EPERM
        if error or _CALLS.get(call.number) != "socket":
            supervision.answer(fd, call, error)

    def _do(self, fd: int, call: Call) -> None:
        """Does as asked; hands a new socket in. Raises OSError with the error of the call."""
        ports = self._owner(call.pid)
        name = _CALLS[call.number]
        if name == "socket":
            family, kind = (argument & 0xFFFFFFFF for argument in call.arguments[:2])
            if kind & ~_KINDS:
                raise OSError(errno.EINVAL, "flags of a socket")
            made = ports.make(family, kind)
            supervision.hand_in(fd, call, made.fileno(), stays_open=not kind & socket.SOCK_CLOEXEC)
            return
        inode = _inode(call, ports.uid)
        if name == "listen":
            _must_wait(fd, call)
            ports.listen(inode, ctypes.c_int(call.arguments[1]).value)
        else:
            address = _address(call, ports.uid)
            _must_wait(fd, call)
            ports.bind(inode, address)

    def _owner(self, pid: int) -> SandboxPorts:
        """Returns the ports of the sandbox that a process belongs to. Raises OSError for a zygote and its packages."""
        for ancestor in _ancestors(pid):
            if (ports := self._ports.sandboxes.get(ancestor)) is not None:
                return ports
        raise OSError(errno.EAFNOSUPPORT, "not in a sandbox")


def _must_wait(fd: int, call: Call) -> None:
    """Raises OSError when the thread was killed.

    Another process with its pid may have been looked at then.
    """
    if not supervision.waits(fd, call):
        raise OSError(errno.ESRCH, "its thread was killed")


def _inode(call: Call, uid: int) -> int:
    """Returns which socket the first argument is. Raises OSError."""
    fd = ctypes.c_int(call.arguments[0]).value
    try:
        with eyes_of(uid):
            about = os.stat(f"/proc/{call.pid}/fd/{fd}")
    except FileNotFoundError:
        raise OSError(errno.EBADF, "not a descriptor") from None
    if not stat.S_ISSOCK(about.st_mode):
        raise OSError(errno.ENOTSOCK, "not a socket")
    return about.st_ino


def _address(call: Call, uid: int) -> bytes:
    """Returns the address that is asked for, out of the program's memory. Raises OSError."""
    at, size = call.arguments[1], ctypes.c_int(call.arguments[2]).value
    if not _LEAST_ADDRESS <= size <= _MOST_ADDRESS:
        raise OSError(errno.EINVAL, "size of an address")
    try:
        with eyes_of(uid):
            fd = os.open(f"/proc/{call.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            raw = os.pread(fd, size, at)
        finally:
            os.close(fd)
    except (OSError, OverflowError):
        raw = b""
    if len(raw) != size:
        raise OSError(errno.EFAULT, "memory of a program")
    return raw


def _ancestors(pid: int) -> Iterator[int]:
    """Yields the parent of a process, its parent, and so on."""
    while pid > 1 and pid != os.getpid():
        words = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        pid = int(words[1]) if len(words) > 1 else 0
        yield pid
