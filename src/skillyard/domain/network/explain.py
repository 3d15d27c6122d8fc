"""Explains why a policy allows a target or not, layer by layer; :class:`Policy` decides."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.network.address import Address, looks_numeric, parse_address
from skillyard.domain.network.policy import Decision, Policy
from skillyard.domain.network.rule import canonical_name
from skillyard.values import dataclass

DEFAULT_PORT = 443
_MOST = 300


@dataclass(frozen=True, slots=True)
class Target:
    """A host and port as a program means them: ``name`` or ``address`` is given."""

    port: int
    name: str | None = None
    address: Address | None = None

    @classmethod
    def parse(cls, text: object, field: str = "target") -> Target:
        """Raises InvalidInput for what the gate would not take for a host, either."""
        if not isinstance(text, str) or not 0 < len(text) <= _MOST:
            raise InvalidInput(field, "must be 'host:port', such as 'api.x.com:443'", shown(text))
        if "/" in text:
            raise InvalidInput(field, "must be 'host:port' without a scheme or path", shown(text))
        host, port = _split(field, text)
        if (address := parse_address(host)) is not None:
            return cls(port, address=address)
        name = canonical_name(host)
        if name is None:
            odd = looks_numeric(host) and "an address must be in its usual form"
            rule = odd or "must be a host name in ASCII or an address, then ':port'"
            raise InvalidInput(field, rule, shown(text))
        return cls(port, name=name)

    def __str__(self) -> str:
        host = self.name or (f"[{self.address}]" if self.address and self.address.version == 6 else str(self.address))
        return f"{host}:{self.port}"


def layer_decisions(policy: Policy, target: Target) -> list[tuple[str, Decision]]:
    """Returns the decision of each layer by itself, the operator's first."""
    alone = [(layer.name, Policy((layer,), policy.hosts, policy.nat64)) for layer in policy.layers]
    return [(name, layer.ask(target.name, target.address, target.port)) for name, layer in alone]


def explain(
    policy: Policy, target: Target, addresses: Sequence[Address] = (), own: Collection[Address] = ()
) -> dict[str, Any]:
    """Returns the decision, each layer's, and whether each address of the target may be dialled.

    ``addresses`` are those of a name; ``own`` are those of the host."""
    asked = policy.ask(target.name, target.address, target.port)
    dialled = addresses if target.address is None else (target.address,)
    checked = [(address, policy.check(target.name, address, target.port, own)) for address in dialled]
    if checked and not any(decision.allowed for _, decision in checked):
        asked = checked[0][1]
    return {
        "target": str(target),
        **_told(asked),
        "layers": [
            {"name": name, "says": _word(said), **_told(said)} for name, said in layer_decisions(policy, target)
        ],
        "addresses": [{"address": str(address), **_told(decision)} for address, decision in checked],
    }


def _told(decision: Decision) -> dict[str, Any]:
    return {"allowed": decision.allowed, "layer": decision.layer, "rule": decision.rule, "reason": decision.reason}


def _word(decision: Decision) -> str:
    """Returns a layer's word for the target; without a rule for it, the layer allows nothing."""
    return "allows" if decision.allowed else "denies" if decision.rule else "has no rule"


def _split(field: str, text: str) -> tuple[str, int]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or ":" not in host:
            raise InvalidInput(field, "must be '[ADDRESS]:PORT' for IPv6", shown(text))
    elif text.count(":") > 1:
        host, rest = text, ""
    else:
        host, colon, port = text.partition(":")
        rest = colon + port
    if not rest:
        return host, DEFAULT_PORT
    digits = rest[1:]
    valid = rest.startswith(":") and digits.isascii() and digits.isdecimal() and len(digits) <= 5
    if not valid or not 1 <= int(digits) <= 65535:
        raise InvalidInput(field, "the port must be a number from 1 to 65535", shown(text))
    return host, int(digits)
