"""Making every address lead to this network namespace itself: an address and two routes of its loopback device.

rtnetlink(7): a route of the type ``local`` for 0.0.0.0/0 makes each packet, whatever its destination, arrive at the
sockets of this namespace, and an accepted one tells by getsockname(2) which address was meant.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

SANDBOX_ADDRESS = "198.18.0.1"
"""The sandbox's own beside 127.0.0.1, by which resolvers see that there is IPv4 (AI_ADDRCONFIG, RFC 3493 §6.1), and
where connections come from, so that none can meet itself."""

_LOOPBACK = 1
"""The index of ``lo`` in every network namespace."""
_NEWADDR, _NEWROUTE, _ERROR = 20, 24, 2
_REQUEST, _ACK, _EXCL, _CREATE = 0x1, 0x4, 0x200, 0x400
_IFA_ADDRESS, _IFA_LOCAL, _RTA_OIF, _RTA_PREFSRC = 1, 2, 4, 7
_TABLE_LOCAL, _PROTOCOL_STATIC, _SCOPE_UNIVERSE, _SCOPE_HOST, _TYPE_LOCAL = 255, 4, 0, 254, 2
_NETNS_COOKIE = 71
_HEAD, _ADDRESS, _ROUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), struct.Struct("=BBBBBBBBI")
_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EOPNOTSUPP, errno.EACCES})
"""The kernel has none, or it is switched off for the device: IPv6 addresses then lead nowhere, which is no way out."""


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
    """To the network namespace that we are in."""
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
    netlink.bind((0, 0))
    return netlink


def namespace(sock: socket.socket) -> int:
    """Which network namespace it belongs to: a number that no other has (SO_NETNS_COOKIE, Linux 5.14)."""
    cookie: int = struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, _NETNS_COOKIE, 8))[0]
    return cookie


def lead_everything_here(netlink: socket.socket) -> None:
    """In the namespace that ``netlink`` belongs to, which must be a sandbox's. What is there already stays.
    Raises OSError naming the step."""
    netlink.send(_MESSAGES)
    for number, code in _answers(netlink, len(_STEPS)):
        what, _, _, excused = _STEPS[number]
        if code not in (0, errno.EEXIST) and code not in excused:
            raise OSError(code, f"{what} of the sandbox's network: {os.strerror(code)}")


def _answers(netlink: socket.socket, wanted: int) -> list[tuple[int, int]]:
    """(which message, error number) of each: the kernel answered while we sent (netlink(7))."""
    found: list[tuple[int, int]] = []
    while len(found) < wanted:
        data = netlink.recv(16384, socket.MSG_DONTWAIT)
        while len(data) >= _HEAD.size + 4:
            length, kind, _, number, _ = _HEAD.unpack_from(data)
            if kind == _ERROR:
                found.append((number, -struct.unpack_from("=i", data, _HEAD.size)[0]))
            data = data[max(_HEAD.size, length + 3 & ~3) :]
    return found
