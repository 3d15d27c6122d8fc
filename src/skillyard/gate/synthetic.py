"""Addresses that stand for names inside one session: 198.18.0.0/15, which no network routes (RFC 2544)."""

from __future__ import annotations

import ipaddress

from skillyard.domain.network.address import Address

POOL = ipaddress.IPv4Network("198.18.0.0/15")
OWN = POOL[1]
"""The sandbox's own, on lo: with it, resolvers that look for a configured family (AI_ADDRCONFIG) ask for IPv4."""
_FIRST = 2
MOST_NAMES = 8192


class Synthetic:
    """One address a name, for as long as the session lives: programs keep addresses longer than any time to live."""

    def __init__(self) -> None:
        self._by_name: dict[str, ipaddress.IPv4Address] = {}
        self._names: list[str] = []

    def address_of(self, name: str) -> ipaddress.IPv4Address | None:
        """None when the session has asked for too many names."""
        found = self._by_name.get(name)
        if found is None and len(self._names) < MOST_NAMES:
            found = ipaddress.IPv4Address(int(POOL.network_address) + _FIRST + len(self._names))
            self._by_name[name] = found
            self._names.append(name)
        return found

    def name_of(self, address: Address) -> str | None:
        if address not in POOL:
            return None
        at = int(address) - int(POOL.network_address) - _FIRST
        return self._names[at] if 0 <= at < len(self._names) else None
