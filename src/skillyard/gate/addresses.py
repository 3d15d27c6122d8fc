"""Hosts and ports in protocols, addresses of sockets, and addresses of this host."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import struct
from collections.abc import Iterator
from typing import Any

from skillyard.domain.network.address import Address, parse_address
from skillyard.domain.network.rule import canonical_name

Host = str | Address
"""A name in canonical form, or an address."""

_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]{2,45})\](?::(.*))?", re.DOTALL)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)

_RTM_NEWADDR, _RTM_GETADDR = 20, 22
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_RTMGRP_IPV4_IFADDR, _RTMGRP_IPV6_IFADDR = 0x10, 0x100
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_HEAD = struct.Struct("=IHHII")
_IFADDR = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_READ = 1 << 16


def parse_host(text: str) -> Host | None:
    """Returns a canonical name or an IPv4 address, or None.

    None stands for userinfo, trailing dots, other alphabets and odd forms."""
    address = parse_address(text)
    return address if isinstance(address, ipaddress.IPv4Address) else canonical_name(text)


def parse_port(text: str) -> int | None:
    """Returns 1 to 65535, written without sign, space or leading zero, or None."""
    port = int(text) if _PORT.fullmatch(text) else 0
    return port if 0 < port <= 65535 else None


def parse_host_port(text: str, default: int | None = None) -> tuple[Host, int] | None:
    """Returns host and port of ``HOST``, ``HOST:PORT`` or ``[IPV6]:PORT``, or None.

    This is the form of RFC 3986 §3.2 without userinfo. The port may be left out where there is a default."""
    host: Host | None
    port: str | None
    if match := _BRACKETED.fullmatch(text):
        found = parse_address(match[1])
        host, port = (found if isinstance(found, ipaddress.IPv6Address) else None), match[2]
    else:
        name, colon, rest = text.partition(":")
        host, port = parse_host(name), rest if colon else None
    number = default if port is None else parse_port(port)
    return None if host is None or number is None else (host, number)


def write_host_port(host: Host, port: int) -> str:
    return f"[{host}]:{port}" if isinstance(host, ipaddress.IPv6Address) else f"{host}:{port}"


def plain(address: Address) -> Address:
    """Returns the IPv4 address of an IPv4-mapped one (RFC 4291 §2.5.5.2), else ``address``."""
    return getattr(address, "ipv4_mapped", None) or address


def endpoint(name: Any) -> tuple[Address, int]:
    """Returns address and port of a socket name of the internet families.

    The name is as getsockname(2) gives it."""
    host, port = name[0], name[1]
    if ":" not in host:
        return ipaddress.IPv4Address(host), port
    return plain(ipaddress.IPv6Address(host.partition("%")[0])), port


class OwnAddresses:
    """The addresses of this host.

    They are read again when the kernel says that they changed (rtnetlink(7)). Raises OSError where the kernel does
    not say: the floor needs them."""

    def __init__(self) -> None:
        self._news = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._news.bind((0, _RTMGRP_IPV4_IFADDR | _RTMGRP_IPV6_IFADDR))
        self._news.setblocking(False)
        self._known = frozenset(_dump())

    def __call__(self) -> frozenset[Address]:
        """Returns the addresses at this moment."""
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
