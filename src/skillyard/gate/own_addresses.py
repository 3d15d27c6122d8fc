"""The host's own addresses, from the kernel, and again whenever the kernel says that they changed (rtnetlink(7))."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Iterator

from skillyard.domain.network.address import Address

_RTM_NEWADDR, _RTM_GETADDR = 20, 22
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_RTMGRP_IPV4_IFADDR, _RTMGRP_IPV6_IFADDR = 0x10, 0x100
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_HEAD = struct.Struct("=IHHII")
_IFADDR = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_READ = 1 << 16


class OwnAddresses:
    """Raises OSError where the kernel does not say: a floor that lacks them is none."""

    def __init__(self) -> None:
        self._news = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._news.bind((0, _RTMGRP_IPV4_IFADDR | _RTMGRP_IPV6_IFADDR))
        self._news.setblocking(False)
        self._known = frozenset(_dump())

    def __call__(self) -> frozenset[Address]:
        """As they are at this moment."""
        if self._changed():
            self._known = frozenset(_dump())
        return self._known

    def close(self) -> None:
        self._news.close()

    def _changed(self) -> bool:
        changed = False
        while True:
            try:
                self._news.recv(_READ)
            except BlockingIOError:
                return changed
            except OSError:  # ENOBUFS: more was said than the socket holds
                return True
            changed = True


def _dump() -> Iterator[Address]:
    with contextlib.closing(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)) as sock:
        sock.settimeout(5.0)
        request = _IFADDR.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        flags = _NLM_F_REQUEST | _NLM_F_DUMP
        sock.send(_HEAD.pack(_HEAD.size + len(request), _RTM_GETADDR, flags, 1, 0) + request)
        while True:
            for kind, body in _messages(sock.recv(_READ)):
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    raise OSError(-struct.unpack_from("=i", body)[0], "the kernel does not tell its addresses")
                if kind == _RTM_NEWADDR:
                    yield from _addresses(body)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEAD.size <= len(data):
        size, kind, *_ = _HEAD.unpack_from(data, at)
        yield kind, data[at + _HEAD.size : at + size]
        at += (max(size, _HEAD.size) + 3) & ~3


def _addresses(body: bytes) -> Iterator[Address]:
    at = _IFADDR.size
    while at + _ATTRIBUTE.size <= len(body):
        size, kind = _ATTRIBUTE.unpack_from(body, at)
        if kind in (_IFA_ADDRESS, _IFA_LOCAL) and size - _ATTRIBUTE.size in (4, 16):
            yield ipaddress.ip_address(body[at + _ATTRIBUTE.size : at + size])
        at += (max(size, _ATTRIBUTE.size) + 3) & ~3
