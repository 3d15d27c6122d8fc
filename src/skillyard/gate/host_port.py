"""Hosts and ports as HTTP and proxies write them, in the one form that every reader understands alike."""

from __future__ import annotations

import ipaddress
import re

from skillyard.domain.network.address import Address, parse_address
from skillyard.domain.network.rule import canonical_name

Host = str | Address
"""A name in canonical form, or an address."""

_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]{2,45})\](?::(.*))?", re.DOTALL)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)


def parse_host(text: str) -> Host | None:
    """A name or an IPv4 address: no userinfo, no trailing dot, no other alphabet, no address in an odd form."""
    address = parse_address(text)
    return address if isinstance(address, ipaddress.IPv4Address) else canonical_name(text)


def parse_port(text: str) -> int | None:
    """1 to 65535 without sign, space or leading zero."""
    port = int(text) if _PORT.fullmatch(text) else 0
    return port if 0 < port <= 65535 else None


def parse_host_port(text: str, default: int | None = None) -> tuple[Host, int] | None:
    """``HOST``, ``HOST:PORT`` or ``[IPV6]:PORT`` (RFC 3986 §3.2 without userinfo); the port may be left out where there
    is a default. None for what is written in any other way."""
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
