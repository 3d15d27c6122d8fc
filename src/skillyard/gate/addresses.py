"""Socket addresses as addresses: IPv4 that comes through an IPv6 socket is IPv4 (RFC 4291 §2.5.5.2)."""

from __future__ import annotations

import ipaddress
from typing import Any

from skillyard.domain.network.address import Address


def plain(address: Address) -> Address:
    """Without the IPv6 dress of an IPv4 address."""
    return getattr(address, "ipv4_mapped", None) or address


def endpoint(name: Any) -> tuple[Address, int]:
    """The address and port in what getsockname(2) and its kin give for the internet families."""
    host, port = name[0], name[1]
    if ":" not in host:
        return ipaddress.IPv4Address(host), port
    return plain(ipaddress.IPv6Address(host.partition("%")[0])), port
