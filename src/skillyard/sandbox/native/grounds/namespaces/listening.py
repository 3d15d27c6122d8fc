"""Opening sockets in a sandbox's network namespace from outside.

A socket belongs to the namespace where it was made, wherever its descriptor goes. The keeper is single-threaded and
has a network namespace of its own, so it can enter another for a moment and come back.

All addresses lead to the sandbox's own namespace (rtnetlink(7)): by a route of the type ``local`` for 0.0.0.0/0, each
packet arrives at the sockets there, and getsockname(2) of an accepted one tells the address that was meant.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from skillyard.sandbox.native.keeper.request import Listen, Opened
from skillyard.sandbox.native.linux import kernel

SANDBOX_ADDRESS = "198.18.0.1"
"""The sandbox's own address beside 127.0.0.1. Resolvers see by it that there is IPv4 (AI_ADDRCONFIG, RFC 3493 §6.1),
and it is the source of connections, so that none can meet itself."""

_LOOPBACK = 1
"""The index of ``lo`` in every network namespace."""
_NEWADDR, _NEWROUTE, _ERROR = 20, 24, 2
_REQUEST, _ACK, _EXCL, _CREATE = 0x1, 0x4, 0x200, 0x400
_IFA_ADDRESS, _IFA_LOCAL, _RTA_OIF, _RTA_PREFSRC = 1, 2, 4, 7
_TABLE_LOCAL, _PROTOCOL_STATIC, _SCOPE_UNIVERSE, _SCOPE_HOST, _TYPE_LOCAL = 255, 4, 0, 254, 2
_NETNS_COOKIE = 71
_HEAD, _ADDRESS, _ROUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), struct.Struct("=BBBBBBBBI")
_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EOPNOTSUPP, errno.EACCES})
"""Errors where the kernel has no IPv6, or none on the device: its addresses then lead nowhere, as they may."""


def _route(family: int) -> bytes:
    route = _ROUTE.pack(family, 0, 0, 0, _TABLE_LOCAL, _PROTOCOL_STATIC, _SCOPE_HOST, _TYPE_LOCAL, 0)
    return route + _attribute(_RTA_OIF, struct.pack("=I", _LOOPBACK))


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value


def _message(kind: int, number: int, body: bytes) -> bytes:
    return _HEAD.pack(_HEAD.size + len(body), kind, _REQUEST | _ACK | _EXCL | _CREATE, number, 0) + body


_OWN = socket.inet_aton(SANDBOX_ADDRESS)
_STEPS: tuple[tuple[str, int, bytes, frozenset[int]], ...] = (
    (
        "the address",
        _NEWADDR,
        _ADDRESS.pack(socket.AF_INET, 32, 0, _SCOPE_UNIVERSE, _LOOPBACK)
        + _attribute(_IFA_LOCAL, _OWN)
        + _attribute(_IFA_ADDRESS, _OWN),
        frozenset(),
    ),
    ("the IPv4 route", _NEWROUTE, _route(socket.AF_INET) + _attribute(_RTA_PREFSRC, _OWN), frozenset()),
    ("the IPv6 route", _NEWROUTE, _route(socket.AF_INET6), _NO_IPV6),
)
_MESSAGES = b"".join(_message(kind, number, body) for number, (_, kind, body, _) in enumerate(_STEPS))


def connect() -> socket.socket:
    """Returns a routing socket of the network namespace that we are in."""
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
    netlink.bind((0, 0))
    return netlink


def namespace(sock: socket.socket) -> int:
    """Returns the unique number of a socket's network namespace (SO_NETNS_COOKIE)."""
    cookie: int = struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, _NETNS_COOKIE, 8))[0]
    return cookie


def lead_everything_here(netlink: socket.socket) -> None:
    """Makes the routes in the namespace of ``netlink``, which must be a sandbox's.

    Routes that are there already stay. Raises OSError naming the step.
    """
    netlink.send(_MESSAGES)
    for number, code in _answers(netlink, len(_STEPS)):
        what, _, _, excused = _STEPS[number]
        if code not in (0, errno.EEXIST) and code not in excused:
            raise OSError(code, f"{what} of the sandbox's network: {os.strerror(code)}")


def _answers(netlink: socket.socket, wanted: int) -> list[tuple[int, int]]:
    """Returns number and error of each message, which the kernel answered while we sent."""
    found: list[tuple[int, int]] = []
    while len(found) < wanted:
        data = netlink.recv(16384, socket.MSG_DONTWAIT)
        while len(data) >= _HEAD.size + 4:
            length, kind, _, number, _ = _HEAD.unpack_from(data)
            if kind == _ERROR:
                found.append((number, -struct.unpack_from("=i", data, _HEAD.size)[0]))
            data = data[max(_HEAD.size, length + 3 & ~3) :]
    return found


_BACKLOG = 128
_FLAGS = socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
_IP_PKTINFO, _IPV6_RECVPKTINFO, _IPV6_FREEBIND = 8, 49, 78


class Home:
    """The keeper's own network namespace, in which this is made, to return to."""

    def __init__(self) -> None:
        self.fd = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        with connect() as sock:
            self.number = namespace(sock)

    def enter(self) -> None:
        """Returns to it. A keeper that is lost in a sandbox's network ends."""
        try:
            kernel.setns(self.fd, kernel.CLONE_NEWNET)
        except OSError as error:
            raise SystemExit(f"the keeper cannot return to its network namespace: {error}") from error


@contextmanager
def _network_of(home: Home, pidfd: int) -> Iterator[socket.socket]:
    """Enters another process's network namespace, and gives a routing socket in it.

    Raises OSError naming the step, ProcessLookupError when the process has ended.
    """
    kernel.setns(pidfd, kernel.CLONE_NEWNET)
    try:
        with connect() as netlink:
            if namespace(netlink) == home.number:
                raise OSError(errno.EPERM, "the sandbox has no network namespace of its own")
            yield netlink
    finally:
        home.enter()


def open_in(home: Home, pidfd: int, wanted: Listen) -> Opened:
    """Opens sockets in the network namespace of ``pidfd``'s process.

    Raises OSError naming the step, ProcessLookupError when it has ended; nothing is open then.
    """
    with _network_of(home, pidfd) as netlink:
        lead_everything_here(netlink)
        return _open(wanted)


def dial_in(home: Home, pidfd: int, port: int, *, six: bool) -> socket.socket:
    """Begins a connection to a loopback port of another process's network namespace.

    The socket does not block; it is connected when it can be written. Raises ConnectionRefusedError when nobody
    listens, OSError as above.
    """
    with _network_of(home, pidfd):
        sock = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM | _FLAGS)
        try:
            sock.connect(("::1" if six else "127.0.0.1", port))
        except BlockingIOError:
            return sock
        except OSError:
            sock.close()
            raise
        return sock


def _open(wanted: Listen) -> Opened:
    family = _family()
    opened = Opened()
    try:
        _open_each(opened, wanted.streams, family, socket.SOCK_STREAM)
        _open_each(opened, wanted.datagrams, family, socket.SOCK_DGRAM)
    except BaseException:
        opened.close()
        raise
    return opened


def _open_each(opened: Opened, ports: Sequence[int], family: int, kind: int) -> None:
    for port in ports:
        sock = _listener(family, kind, port)
        if sock is None:
            opened.taken.append(port)
        else:
            opened.sockets.append(sock)


def _listener(family: int, kind: int, port: int) -> socket.socket | None:
    sock = socket.socket(family, kind | _FLAGS)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if kind == socket.SOCK_STREAM:
            # After a gate that ended, past its connections. Who listens already is never joined (socket(7)).
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        elif family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)  # to answer from what is routed here, yet not ours
        else:
            sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        sock.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))  # noqa: S104 - of a sandbox's own namespace
        if kind == socket.SOCK_STREAM:
            sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise OSError(error.errno, f"port {port} in the sandbox: {error.strerror}") from None
    return sock


@functools.cache
def _family() -> int:
    """Returns IPv6, whose sockets take IPv4, too, unless this kernel has none."""
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM | socket.SOCK_CLOEXEC).close()
    except OSError:
        return socket.AF_INET
    return socket.AF_INET6
