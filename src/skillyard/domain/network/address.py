"""Addresses in strict form, and the ranges that stay closed below every policy.

Only an operator who names an address opens it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NUMERIC_LABEL = re.compile(r"(?:[0-9]+|0[xX][0-9A-Fa-f]*)")

_GLOBAL_V6 = ipaddress.ip_network("2000::/3")
_CLOSED: tuple[tuple[str, str], ...] = (
    ("0.0.0.0/8", "this network"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared by a carrier (CGNAT)"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "metadata"),
    ("169.254.169.254/32", "metadata"),
    ("169.254.0.0/16", "link-local"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved"),
    ("192.0.2.0/24", "documentation"),
    ("192.88.99.0/24", "6to4 relay"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "benchmarking"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("::/96", "IPv4-compatible"),
    ("::ffff:0:0/96", "IPv4-mapped"),
    ("64:ff9b::/96", "NAT64"),
    ("64:ff9b:1::/48", "NAT64"),
    ("2001::/23", "reserved"),
    ("2001:db8::/32", "documentation"),
    ("2002::/16", "6to4"),
    ("3fff::/20", "documentation"),
    ("fc00::/7", "private (ULA)"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "site-local"),
    ("ff00::/8", "multicast"),
)
NAT64_LENGTHS = (32, 40, 48, 56, 64, 96)
"""Prefixes behind which a translator finds an IPv4 address in an IPv6 one (RFC 6052 §2.2)."""
_ISATAP = (b"\0\0\x5e\xfe", b"\2\0\x5e\xfe")
_FLOOR: tuple[tuple[Network, str], ...] = tuple((ipaddress.ip_network(text), why) for text, why in _CLOSED)


def parse_address(text: str) -> Address | None:
    """Returns a strict address literal, or None for everything else.

    It is four decimal numbers without leading zeros, or IPv6 without brackets and zone (RFC 4291 §2.2, RFC 6943
    §3.1.1)."""
    if "%" in text:
        return None
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def looks_numeric(host: str) -> bool:
    """Returns whether some resolver would read ``host`` as an IPv4 address in an odd form.

    Examples are ``0x7f.1`` and ``2130706433``: the last label is a number (inet_aton(3), WHATWG URL §3.5)."""
    return _NUMERIC_LABEL.fullmatch(host.rstrip(".").rpartition(".")[2]) is not None


def embedded(address: Address, nat64: Iterable[ipaddress.IPv6Network]) -> set[ipaddress.IPv4Address]:
    """Returns the IPv4 address behind ``address``, by a NAT64 or by ISATAP (RFC 5214 §6.1)."""
    if address.version == 4:
        return set()
    raw = address.packed
    found = {raw[12:]} if raw[8:12] in _ISATAP else set()
    found |= {_behind(raw, prefix.prefixlen) for prefix in nat64 if address in prefix}
    return {ipaddress.IPv4Address(four) for four in found}


def nat64_prefixes(
    address: ipaddress.IPv6Address, known: Iterable[ipaddress.IPv4Address]
) -> set[ipaddress.IPv6Network]:
    """Returns the prefixes by which ``address`` stands for a ``known`` one (RFC 7050 §3)."""
    fours = {four.packed for four in known}
    lengths = [length for length in NAT64_LENGTHS if _behind(address.packed, length) in fours]
    return {ipaddress.IPv6Network((address.packed, length), strict=False) for length in lengths}


def _behind(raw: bytes, length: int) -> bytes:
    """Returns the IPv4 address after the prefix.

    Bits 64 to 71 are left out (RFC 6052 §2.2)."""
    start = length // 8
    return (raw[start:8] + raw[max(start, 9) :])[:4]


def closed(address: Address, own: Iterable[Address] = ()) -> str:
    """Returns why ``address`` is below the floor, or an empty text.

    ``own`` are the host's addresses."""
    for network, why in _FLOOR:
        if address.version == network.version and address in network:
            return why
    if address.version == 6 and address not in _GLOBAL_V6:
        return "outside the global range"
    return "the host itself" if address in frozenset(own) else ""
