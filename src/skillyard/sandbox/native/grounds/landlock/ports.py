"""TCP ports of sandboxes that have the host's network, for the keeper alone to connect to.

Programs can accept connections and nothing else. The keeper makes their sockets and does with them as asked
(``calls.py``), within these walls:

- A socket is held to the loopback device, and the kernel drops each packet to it that is not signed with a key of the
  sandbox that only the keeper knows (tcp(7), TCP_MD5SIG; RFC 2385). So nobody else on the host can connect. A packet
  filter would do that too, but kernels let only an administrator attach one to TCP.
- Whatever port is asked for, the keeper takes a free one of 127.0.0.1. So sandboxes cannot take each other's ports or
  the host's, and learn from no refusal which ones are in use.
- The keeper holds a listener's port until it has seen that the listener is gone, so that it never connects to another.

Calls that connect are refused by the sandbox's filter, and by Landlock.
"""

from __future__ import annotations

import errno
import os
import resource
import secrets
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

MOST_SOCKETS = 16
"""Sockets of a sandbox that do not listen. The oldest becomes useless when there is one more."""
MOST_LISTENERS = 16
_SHARE = 8
"""All sandboxes together take this part of the keeper's descriptors."""
_BACKLOG = 128
_MAPPED = bytes(10) + b"\xff\xff"
"""Begins the IPv6 address of an IPv4 address (RFC 4291 §2.5.5.2)."""
_TCP_MD5SIG_EXT, _FOR_PREFIX, _KEY = 32, 1, 80


@dataclass(slots=True)
class _Made:
    """A socket that a program has and that does not listen. ``asked`` is the port that it was bound to."""

    sock: socket.socket
    asked: int = 0


@dataclass(slots=True)
class _Listener:
    """A program's listener. ``hold`` keeps ``port`` from everybody else."""

    inode: int
    port: int
    hold: socket.socket


class SandboxPorts:
    """The ports of one sandbox, whose programs are the user ``uid``; 0 stands for our own."""

    def __init__(self, keeper: KeeperPorts, uid: int) -> None:
        self._keeper = keeper
        self.uid = uid
        self._key = secrets.token_bytes(_KEY)
        self._init = 0
        self._made: dict[int, _Made] = {}
        self._listeners: dict[tuple[int, int], _Listener] = {}

    @property
    def held(self) -> int:
        """Returns the descriptors that it takes."""
        return len(self._made) + len(self._listeners)

    def begin(self, init: int) -> None:
        """Serves all processes below ``init``."""
        self._init = init
        self._keeper.sandboxes[init] = self

    def end(self) -> None:
        """Serves nobody any more. Idempotent."""
        if self._keeper.sandboxes.get(self._init) is self:
            del self._keeper.sandboxes[self._init]
        for made in self._made.values():
            made.sock.close()
        for listener in self._listeners.values():
            listener.hold.close()
        self._made.clear()
        self._listeners.clear()

    def dial(self, port: int, *, six: bool) -> socket.socket:
        """Begins a connection. Raises ConnectionRefusedError when nobody listens, OSError."""
        listener = self._listeners.get((socket.AF_INET6 if six else socket.AF_INET, port))
        if listener is None or listener.inode not in set(_listening()):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            _sign(sock, self._key)
            with suppress(BlockingIOError):
                sock.connect(("127.0.0.1", listener.port))
        except BaseException:
            sock.close()
            raise
        return sock

    def make(self, family: int, kind: int) -> socket.socket:
        """Makes a stream socket within the walls. Raises OSError."""
        while len(self._made) >= MOST_SOCKETS:
            _let_go(self._made.pop(next(iter(self._made))).sock)
        if self._keeper.full():
            raise OSError(errno.ENFILE, "too many sockets of sandboxes")
        sock = socket.socket(family, kind | socket.SOCK_CLOEXEC)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
            _sign(sock, self._key)
        except BaseException:
            sock.close()
            raise
        self._made[os.fstat(sock.fileno()).st_ino] = _Made(sock)
        return sock

    def bind(self, inode: int, address: bytes) -> None:
        """Binds a socket to a port of its own, whichever the ``struct sockaddr`` asks for. Raises OSError."""
        made = self._made.get(inode)
        if made is None:
            raise OSError(errno.EINVAL if self._listens(inode) else errno.EPERM, "not to be bound")
        port = port_of(address, made.sock.family)
        if made.asked:
            raise OSError(errno.EINVAL, "bound before")
        self._refuse_taken(made.sock.family, port)
        own = _bind(made.sock)
        made.asked = port or own

    def listen(self, inode: int, backlog: int) -> None:
        """Lets a socket listen. Raises OSError."""
        if self._listens(inode):
            if inode not in set(_listening()):
                raise OSError(errno.EINVAL, "it was shut down")
            return
        if (made := self._made.get(inode)) is None:
            raise OSError(errno.EPERM, "not to listen")
        made.asked = made.asked or _bind(made.sock)
        key = (made.sock.family, made.asked)
        self._refuse_taken(*key)
        self._make_room()
        port = made.sock.getsockname()[1]
        hold = _held(port)
        made.sock.listen(min(max(backlog, 0), _BACKLOG))
        self._listeners[key] = _Listener(inode, port, hold)
        # From here on it lives as long as programs have it.
        self._made.pop(inode).sock.close()

    def _listens(self, inode: int) -> bool:
        return any(listener.inode == inode for listener in self._listeners.values())

    def _refuse_taken(self, family: int, port: int) -> None:
        """Raises OSError when a program of this sandbox listens on the port."""
        listener = self._listeners.get((family, port))
        if listener is None:
            return
        if listener.inode in set(_listening()):
            raise OSError(errno.EADDRINUSE, "taken by a program of the sandbox")
        self._listeners.pop((family, port)).hold.close()

    def _make_room(self) -> None:
        """Forgets listeners that are gone, where there are many. Raises OSError when all are there."""
        if len(self._listeners) < MOST_LISTENERS:
            return
        living = set(_listening())
        for key, listener in list(self._listeners.items()):
            if listener.inode not in living:
                self._listeners.pop(key).hold.close()
        if len(self._listeners) >= MOST_LISTENERS:
            raise OSError(errno.ENOBUFS, "too many listeners")


class KeeperPorts:
    """The ports of all sandboxes, by the pids of their inits."""

    def __init__(self) -> None:
        self.sandboxes: dict[int, SandboxPorts] = {}

    def full(self) -> bool:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE
        return sum(ports.held for ports in self.sandboxes.values()) >= most


def _listening() -> Iterator[int]:
    """Yields the inodes of the host's TCP listeners, the first of its lists (proc(5))."""
    for name in ("tcp", "tcp6"):
        with suppress(FileNotFoundError), open(f"/proc/self/net/{name}", encoding="ascii") as file:
            next(file, None)
            for line in file:
                words = line.split()
                if words[3] != "0A":
                    break
                yield int(words[9])


def _sign(sock: socket.socket, key: bytes) -> None:
    """Has the kernel sign all that a socket sends by IPv4, and drop all that comes unsigned."""
    if sock.family == socket.AF_INET6:
        every = struct.pack("=HHI16s4x", socket.AF_INET6, 0, 0, _MAPPED + bytes(4))
    else:
        every = struct.pack("=HH12x", socket.AF_INET, 0)
    signature = struct.pack("=128sBBHi80s", every, _FOR_PREFIX, 0, len(key), 0, key)  # struct tcp_md5sig
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_MD5SIG_EXT, signature)


def _held(port: int) -> socket.socket:
    """Returns a socket that holds a port. Only sockets of our user can share it (socket(7), SO_REUSEPORT)."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", port))
    except BaseException:
        sock.close()
        raise
    return sock


def _bind(sock: socket.socket) -> int:
    """Binds to a free port of 127.0.0.1, which only sockets of ours may share; returns it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if sock.family == socket.AF_INET6:
        # Its connections come by IPv4, which hosts without IPv6 have, too.
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("::ffff:127.0.0.1", 0))
    else:
        sock.bind(("127.0.0.1", 0))
    port: int = sock.getsockname()[1]
    return port


def _let_go(sock: socket.socket) -> None:
    """Frees the port of a socket that a program may keep for ever. The program can do nothing with it then."""
    with suppress(OSError):
        if sock.getsockname()[1]:
            # A listener that is shut down gives its port back (tcp_disconnect in net/ipv4/tcp.c).
            sock.listen(0)
            sock.shutdown(socket.SHUT_RD)
    sock.close()


def port_of(address: bytes, family: int) -> int:
    """Returns the port of a ``struct sockaddr``. Raises OSError for one of another host or another family."""
    given, port = int.from_bytes(address[:2], "little"), int.from_bytes(address[2:4], "big")
    if given != family:
        raise OSError(errno.EAFNOSUPPORT, "family of an address")
    host = address[4:8] if family == socket.AF_INET else address[8:24]
    host = host.removeprefix(_MAPPED)
    if not (host in (bytes(4), bytes(16), bytes(15) + b"\x01") or (len(host) == 4 and host[0] == 127)):
        raise OSError(errno.EADDRNOTAVAIL, "neither the loopback nor any address")
    return port
