"""Opening sockets in a sandbox's network namespace from outside.

A socket belongs to the namespace where it was made, wherever its descriptor goes. The keeper is single-threaded and
has a network namespace of its own, so it can enter another for a moment and come back.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
from collections.abc import Sequence

from skillyard.sandbox.native.keeper.request import Listen, Opened
from skillyard.sandbox.native.linux import kernel, rtnetlink

_BACKLOG = 128
_FLAGS = socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
_IP_PKTINFO, _IPV6_RECVPKTINFO, _IPV6_FREEBIND = 8, 49, 78


class Home:
    """The network namespace in which this is made, the keeper's own: to return to."""

    def __init__(self) -> None:
        self.fd = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        with rtnetlink.connect() as sock:
            self.number = rtnetlink.namespace(sock)

    def enter(self) -> None:
        """A keeper that is lost in a sandbox's network must not go on: all it holds ends with it."""
        try:
            kernel.setns(self.fd, kernel.CLONE_NEWNET)
        except OSError as error:
            raise SystemExit(f"the keeper cannot return to its network namespace: {error}") from error


def open_in(home: Home, pidfd: int, wanted: Listen) -> Opened:
    """In the network namespace of ``pidfd``'s process. Raises OSError naming the step, ProcessLookupError when it has
    ended; nothing is open then."""
    kernel.setns(pidfd, kernel.CLONE_NEWNET)
    try:
        with rtnetlink.connect() as netlink:
            if rtnetlink.namespace(netlink) == home.number:
                raise OSError(errno.EPERM, "the sandbox has no network namespace of its own")
            rtnetlink.lead_everything_here(netlink)
        return _open(wanted)
    finally:
        home.enter()


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
    """IPv6, whose sockets take IPv4 too, unless this kernel has none."""
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM | socket.SOCK_CLOEXEC).close()
    except OSError:
        return socket.AF_INET
    return socket.AF_INET6
