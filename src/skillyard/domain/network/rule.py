"""One egress rule, and how it is written: ``[!]TARGET[:PORTS]``.

=====================  =====================================================================
``api.x.com``          this name, ports 80 and 443
``*.x.com:8443``       every name below x.com, not x.com itself
``*``                  every name and public address, every port
``192.0.2.7:5432``     this address, named outright
``10.0.0.0/8:80,443``  these addresses; ``[2001:db8::/32]:443`` for IPv6
``!admin.x.com``       never this one, whatever allows it; every port unless it names some
=====================  =====================================================================

``PORTS`` is ``*`` or numbers and ranges with commas between: ``80,443,8000-8100``.
"""

from __future__ import annotations

import ipaddress
import re

from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.network.address import Address, Network, looks_numeric, parse_address
from skillyard.values import dataclass

WEB_PORTS = ((80, 80), (443, 443))
ANY_PORT = ((1, 65535),)
MAX_RULES = 1000
_MAX_TEXT = 512
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_PORTS = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*")
_V6 = re.compile(r"\[([0-9A-Fa-f:.]+(?:/[0-9]{1,3})?)\](?::(.*))?")

PortRanges = tuple[tuple[int, int], ...]


def canonical_name(text: str) -> str | None:
    """Returns a host name in lower case (RFC 1123 §2.1, with underscores), or None.

    None stands for an empty or over-long name, another alphabet than ASCII, a trailing dot, and an address in any
    form."""
    name = text.lower() if text.isascii() else ""
    if not 0 < len(name) <= 253 or looks_numeric(name) or _NAME.fullmatch(name) is None:
        return None
    return name


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: ``name`` is a host (``*`` for all), or ``network`` is given.

    ``below`` says that the rule is for the names below ``name``; ``text`` is the rule as it was written."""

    text: str
    deny: bool
    ports: PortRanges
    name: str = ""
    below: bool = False
    network: Network | None = None

    @property
    def everything(self) -> bool:
        """Returns whether its target is ``*``, which names nothing."""
        return self.name == "*"

    def has_port(self, port: int) -> bool:
        return any(first <= port <= last for first, last in self.ports)

    def has_name(self, name: str) -> bool:
        if self.below:
            return name.endswith("." + self.name)
        return self.everything or name == self.name

    def has_address(self, address: Address) -> bool:
        network = self.network
        return network is not None and address.version == network.version and address in network


def parse_rule(text: object, field: str = "network") -> Rule:
    """Returns the rule of a text. Raises InvalidInput naming the part that is wrong."""
    if not isinstance(text, str) or not text or len(text) > _MAX_TEXT:
        raise InvalidInput(
            field, f"must be a rule such as 'api.x.com:443', at most {_MAX_TEXT} characters", shown(text)
        )
    deny, rest = (True, text[1:]) if text.startswith("!") else (False, text)
    target, ports = _split(field, text, rest)
    name, below, network = _target(field, text, target)
    every = deny or name == "*"
    return Rule(text, deny, _ports(field, text, ports, ANY_PORT if every else WEB_PORTS), name, below, network)


def _split(field: str, text: str, rest: str) -> tuple[str, str | None]:
    if "://" in rest:
        raise InvalidInput(field, "must be a host without a scheme or path", shown(text))
    if rest.startswith("["):
        match = _V6.fullmatch(rest)
        if match is None:
            raise InvalidInput(field, "must be '[ADDRESS]' or '[ADDRESS]:PORTS', without a zone", shown(text))
        return match[1], match[2]
    if rest.count(":") > 1:
        return rest, None  # a bare IPv6 address or network
    target, colon, ports = rest.partition(":")
    return target, ports if colon else None


def _target(field: str, text: str, target: str) -> tuple[str, bool, Network | None]:
    if target == "*":
        return "*", False, None
    if (network := _network(field, text, target)) is not None:
        return "", False, network
    below = target.startswith("*.")
    name = canonical_name(target[2:] if below else target)
    if name is None:
        raise InvalidInput(field, _what_is_wrong(target), shown(text))
    if below and "." not in name:
        raise InvalidInput(field, "a wildcard needs a domain of two labels or more", shown(text))
    return name, below, None


def _network(field: str, text: str, target: str) -> Network | None:
    if "/" not in target:
        address = parse_address(target)
        return None if address is None else ipaddress.ip_network(address)
    head, _, bits = target.partition("/")
    address = parse_address(head)
    if address is None or not bits.isdecimal() or not bits.isascii():
        raise InvalidInput(field, "must be a host without a scheme or path, or ADDRESS/BITS", shown(text))
    try:
        return ipaddress.ip_network(target)
    except ValueError as error:
        raise InvalidInput(field, f"is not a valid network: {error}", shown(text)) from None


def _what_is_wrong(target: str) -> str:
    if not target.isascii():
        return "must be ASCII: write an international name in its xn-- form"
    if target.endswith("."):
        return "must not end with a dot"
    if looks_numeric(target):
        return "must be a host name, or an address in its usual form"
    if "*" in target:
        return "may have '*' alone or as the whole first label only: '*.x.com'"
    return "must be a host name, '*.host.name', an address, a network or '*', each with an optional :PORTS"


def _ports(field: str, text: str, ports: str | None, default: PortRanges) -> PortRanges:
    if ports is None:
        return default
    if ports == "*":
        return ANY_PORT
    if _PORTS.fullmatch(ports) is None:
        raise InvalidInput(field, "ports must be '*', or numbers and ranges such as 80,443,8000-8100", shown(text))
    ranges = []
    for part in ports.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not 1 <= low <= high <= 65535:
            raise InvalidInput(field, "ports must be from 1 to 65535, ranges ascending", shown(text))
        ranges.append((low, high))
    return tuple(ranges)
