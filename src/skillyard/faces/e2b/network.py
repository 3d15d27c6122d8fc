"""E2B's rules for the network of a sandbox, as rules that narrow what policy gives. They never widen it.

E2B opens everything and takes away; here nothing is open that policy does not give. ``denyOut`` with everything and a
list in ``allowOut`` therefore mean the same, and both alone mean at most what policy gives. Where both name an address
E2B allows it, and here it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skillyard.config.network import NetworkSettings
from skillyard.domain.errors import InvalidInput, shape
from skillyard.domain.network.rule import Rule, parse_rule
from skillyard.faces.e2b.errors import NotHere

_EVERYTHING = ("0.0.0.0/0", "::/0")
_MOST = 500
_NOT_HERE = {
    "egressProxy": "network.egressProxy: connections leave by the gate of this server, and by no other proxy",
    "rules": "network.rules: requests are not rewritten by rules; bind a secret to a host instead",
    "dnsServers": "network.dnsServers: names are asked of the gate alone",
    "maskRequestHost": "network.maskRequestHost: services see the host of their port",
    "httpsPorts": "network.httpsPorts: ports are reached by plain HTTP inside",
}


def rules_of(body: Mapping[str, Any], settings: NetworkSettings) -> tuple[Rule, ...] | None:
    """Returns the rules of a request; None for what policy gives. Raises InvalidInput, ApiRefusal.

    ``body`` has ``allow_internet_access`` beside the fields of E2B's network.
    """
    for name, why in _NOT_HERE.items():
        if body.get(name):
            raise NotHere(why)
    if body.get("allowPublicTraffic"):
        raise NotHere("network.allowPublicTraffic: ports of a sandbox are never open to everybody")
    allowed, denied = _list(body, "allowOut"), _list(body, "denyOut")
    internet = body.get("allow_internet_access")
    if internet is not None and not isinstance(internet, bool):
        raise InvalidInput("allow_internet_access", "must be true or false", shape(internet))
    closed = internet is False or any(text in _EVERYTHING for text in denied)
    denies = [parse_rule(f"!{text}", "network.denyOut") for text in denied if text not in _EVERYTHING]
    if closed:
        if any(text in _EVERYTHING for text in allowed):
            return _given(settings, denies)
        return (*(parse_rule(_any_port(text), "network.allowOut") for text in allowed), *denies)
    for text in allowed:  # they are checked, and change nothing that policy gives
        parse_rule(_any_port(text), "network.allowOut")
    return _given(settings, denies)


def _given(settings: NetworkSettings, denies: Sequence[Rule]) -> tuple[Rule, ...] | None:
    """Returns what policy gives to code, less ``denies``."""
    if not denies:
        return None
    given = () if isinstance(settings.run_code, str) else settings.run_code
    return (*given, *denies)


def _any_port(text: str) -> str:
    return f"[{text}]:*" if ":" in text else f"{text}:*"


def _list(body: Mapping[str, Any], name: str) -> list[str]:
    found = body.get(name) or []
    if not isinstance(found, list) or len(found) > _MOST or not all(isinstance(text, str) for text in found):
        raise InvalidInput(f"network.{name}", f"must be a list of at most {_MOST} texts", shape(found))
    return found
