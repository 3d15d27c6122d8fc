"""The network policy of a run: layers of rules, all of which must allow a connection.

The operator's layer bounds the rules that a skill declares, and these bound the rules that a request narrows. So a
later layer cannot widen, and a decision can name the layer and the rule that made it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from ipaddress import IPv6Network

from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.network.address import Address, closed, embedded
from skillyard.domain.network.rule import MAX_RULES, Rule, parse_rule
from skillyard.values import dataclass

OPERATOR, PROFILE = "operator", "profile"
"""The layers of the settings, which nothing replaces while a run works."""
NONE_WORD, OPEN_WORD = "none", "open"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a connection is allowed, and by which rule of which layer.

    ``reason`` is empty when it is allowed."""

    allowed: bool
    layer: str = ""
    rule: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Layer:
    """Named rules: a deny rule decides first, then an allow rule; else it is refused."""

    name: str
    rules: tuple[Rule, ...]

    def denies(self, name: str | None, address: Address | None, port: int) -> Rule | None:
        return next((rule for rule in self.rules if rule.deny and _meets(rule, name, address, port)), None)

    def allows(self, name: str | None, address: Address | None, port: int) -> Rule | None:
        """Returns the rule that allows a target.

        Names allow names, addresses allow literals, ``*`` allows both."""
        return next((rule for rule in self.rules if not rule.deny and _meets(rule, name, address, port)), None)

    def names_address(self, address: Address, port: int) -> Rule | None:
        """Returns the allow rule that names ``address`` outright."""
        found = (rule for rule in self.rules if not rule.deny and rule.has_address(address) and rule.has_port(port))
        return next(found, None)

    def names_name(self, name: str, port: int) -> Rule | None:
        """Returns the allow rule that names ``name``, by itself or by a wildcard of its domain."""
        found = (r for r in self.rules if not r.deny and not r.everything and _meets(r, name, None, port))
        return next(found, None)

    def uses(self, port: int) -> bool:
        """Returns whether it allows anything at all on ``port``."""
        return any(not rule.deny and rule.has_port(port) for rule in self.rules)

    def texts(self) -> list[str]:
        return [rule.text for rule in self.rules]


@dataclass(frozen=True, slots=True)
class Policy:
    """Layers of rules, and facts that decisions need.

    ``hosts`` are the operator's own addresses of names, asked before any name server; a name among them may have a
    closed address. ``nat64`` are prefixes of translators: the address behind one is judged too."""

    layers: tuple[Layer, ...] = ()
    hosts: Mapping[str, tuple[Address, ...]] = field(default_factory=dict)
    nat64: tuple[IPv6Network, ...] = ()

    @property
    def nothing(self) -> bool:
        """Returns whether no connection at all is allowed."""
        return not self.layers or any(all(rule.deny for rule in layer.rules) for layer in self.layers)

    def ask(self, name: str | None, address: Address | None, port: int) -> Decision:
        """Decides before a name is looked up, or about a literal.

        :meth:`check` must follow for the address to dial."""
        if not self.layers:
            return Decision(False, reason="no network is allowed")
        allowed = Decision(False)
        for layer in self.layers:
            if (rule := layer.denies(name, address, port)) is not None:
                return Decision(False, layer.name, rule.text, f"denied by {layer.name} rule '{rule.text}'")
        for layer in self.layers:
            rule = layer.allows(name, address, port)
            if rule is None:
                return Decision(False, layer.name, "", self._why_not(layer, name, address, port))
            if not allowed.allowed or not rule.everything:
                allowed = Decision(True, layer.name, rule.text)
        return allowed

    def check(
        self,
        name: str | None,
        address: Address,
        port: int,
        own: Collection[Address] = (),
        nat64: Iterable[IPv6Network] = (),
    ) -> Decision:
        """Decides whether this very ``address`` may be dialled, by the floor and denied networks.

        ``name`` was looked up, None for a literal; ``own`` are the host's addresses, ``nat64`` prefixes beside our
        own."""
        decision = self.ask(name, None if name is not None else address, port)
        if not decision.allowed:
            return decision
        reached = (address, *sorted(embedded(address, (*self.nat64, *nat64))))
        for layer, each in itertools.product(self.layers, reached):
            if (rule := layer.denies(None, each, port)) is not None:
                return Decision(False, layer.name, rule.text, f"denied by {layer.name} rule '{rule.text}'")
        where, why = next(((each, why) for each in reached if (why := closed(each, own))), (address, ""))
        if why and not self._named_outright(name, address, port):
            how = "names the address in network.rules" if name is None else "gives the name's address in network.hosts"
            what = f"{address}" if where == address else f"{address} leads to {where}, which"
            return Decision(False, "floor", str(address), f"{what} is {why}: closed unless the operator {how}")
        return decision

    def answers(self, name: str) -> bool:
        """Returns whether a name server may know ``name``: some port of it is allowed."""
        if not all(
            any(not rule.deny and _meets(rule, name, None, None) for rule in layer.rules) for layer in self.layers
        ):
            return False  # said at once, because questions come in floods
        return any(self.ask(name, None, port).allowed for port in self._ports_tried())

    def ports(self, most: int) -> tuple[int, ...]:
        """Returns the ports on which something may be allowed, ascending.

        Rules name them one by one or by ranges of at most ``most`` ports."""
        found: set[int] = set()
        for layer in self.layers:
            for rule in layer.rules:
                for first, last in () if rule.deny else rule.ports:
                    if last - first < most:
                        found.update(range(first, last + 1))
        usable = (port for port in sorted(found) if all(layer.uses(port) for layer in self.layers))
        return tuple(itertools.islice(usable, most))

    @property
    def every_port(self) -> bool:
        """Returns whether some connection is allowed to a port that no rule names."""
        return bool(self.layers) and all(
            any(not rule.deny and (1, 65535) in rule.ports for rule in layer.rules) for layer in self.layers
        )

    def _ports_tried(self) -> list[int]:
        """One port of each range at whose ends a decision can change."""
        edges = {443, 80}
        for layer in self.layers:
            for rule in layer.rules:
                for first, last in rule.ports:
                    edges.update(port for port in (first, last, first - 1, last + 1) if 1 <= port <= 65535)
        return sorted(edges)

    def _named_outright(self, name: str | None, address: Address, port: int) -> bool:
        if name is None:
            return all(layer.names_address(address, port) is not None for layer in self.layers)
        if any(layer.names_name(name, port) is None for layer in self.layers if layer.name != OPERATOR):
            return False
        if address in self.hosts.get(name, ()):
            return True
        operator = [layer for layer in self.layers if layer.name == OPERATOR]
        return bool(operator) and all(
            layer.names_name(name, port) is not None and layer.names_address(address, port) is not None
            for layer in operator
        )

    def _why_not(self, layer: Layer, name: str | None, address: Address | None, port: int) -> str:
        target = name if name is not None else str(address)
        other = next((r for r in layer.rules if not r.deny and _meets(r, name, address, None)), None)
        if other is None:
            return f"no {layer.name} rule allows {target}"
        return f"{layer.name} rule '{other.text}' does not allow port {port}: write {_with_port(other.text, port)}"


def _meets(rule: Rule, name: str | None, address: Address | None, port: int | None) -> bool:
    if port is not None and not rule.has_port(port):
        return False
    if name is not None and rule.network is None:
        return rule.has_name(name)
    if address is not None:
        return rule.everything or rule.has_address(address)
    return False


def _with_port(text: str, port: int) -> str:
    host = text.rpartition(":")[0] if ":" in text and not text.endswith("]") else text
    return f"'{host or text}:{port}'"


def parse_rules(value: object, field: str = "network") -> tuple[Rule, ...]:
    """Returns the rules of a list, or of the word ``none`` or ``open``. Raises InvalidInput."""
    if value == NONE_WORD:
        return ()
    if value == OPEN_WORD:
        return (parse_rule("*", field),)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise InvalidInput(field, f"must be a list of rules, '{NONE_WORD}' or '{OPEN_WORD}'", shown(value))
    if len(value) > MAX_RULES:
        raise InvalidInput(field, f"must have at most {MAX_RULES} rules", shown(value))
    return tuple(parse_rule(item, f"{field}[{index}]") for index, item in enumerate(value))


def is_open(rules: Iterable[Rule]) -> bool:
    """Returns whether rules ask for every host, to which an operator has to consent.

    That is ``*``, or a network too wide for all of its hosts to be meant (skills-protocol §8)."""
    return any(not rule.deny and (rule.everything or _vast(rule)) for rule in rules)


def _vast(rule: Rule) -> bool:
    """Returns whether a network is wider than a registry gives to one holder.

    That is shorter than /8 in IPv4 and than /16 in IPv6."""
    network = rule.network
    return network is not None and network.prefixlen < (8 if network.version == 4 else 16)
