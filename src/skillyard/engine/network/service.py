"""The operator's network policy, as it is shown and explained."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from skillyard.config.network import NetworkSettings
from skillyard.config.policy import TrustSettings
from skillyard.config.profiles import ProfileSettings
from skillyard.domain.errors import InvalidInput
from skillyard.domain.network.address import Address, parse_address
from skillyard.domain.network.explain import Target, explain
from skillyard.domain.network.policy import OPERATOR, Layer, Policy, parse_rules
from skillyard.domain.network.rule import Rule
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.skill import Skill
from skillyard.engine.backends import Backends, Offer
from skillyard.engine.network.grant import (
    EGRESS,
    REQUEST,
    ability,
    check_offer,
    granted,
    layers_of,
    own_layer,
    profile_layer,
)
from skillyard.engine.runs.failure import Refused
from skillyard.engine.skills.service import SkillService
from skillyard.values import dataclass

PATIENCE_S = 5.0
"""How long the name server may take."""


async def resolve(name: str, field: str) -> tuple[Address, ...]:
    """Returns the addresses of a name as getaddrinfo(3) has them.

    They serve explanations alone: the gate looks for itself. Raises InvalidInput for a name that has none."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PATIENCE_S):
            found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        why = "the name server did not answer" if isinstance(error, TimeoutError) else str(error)
        raise InvalidInput(field, f"'{name}' has no address here: {why}") from None
    texts = dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found)
    return tuple(address for text in texts if (address := parse_address(text)) is not None)


def is_own(address: Address) -> bool:
    """Returns whether it is one of the host's: only those can be bound (ip(7))."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class PolicyService:
    """The operator's policy, as it is shown and explained."""

    skills: SkillService
    backends: Backends
    network: NetworkSettings
    trust: TrustSettings
    has_gate: bool
    profiles: Mapping[str, ProfileSettings]

    async def explain(self, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns which rules decide about each target, layer by layer."""
        if params["resolve"]:
            principal.require(Scope.ADMIN)  # the answers are those of the host's own name servers, for any name
        targets = [Target.parse(text, f"targets[{index}]") for index, text in enumerate(params["targets"])]
        skill, mounted = await self._whose(principal, params)
        asked = None if params.get("network") is None else parse_rules(params["network"])
        somebody = skill is not None or params["code"]
        least = (await self.skills.standings.of(mounted)).least
        profile = profile_layer(self.profiles, principal)
        policy = self._policy(skill, mounted, asked, least, profile, somebody=somebody)
        explained = [await _explained(policy, target, params["resolve"]) for target in targets]
        told: dict[str, Any] = {"layers": layers_of(policy), "targets": explained}
        if least:
            told["least"] = least
        if somebody and (why := self._refusal(skill, mounted, asked, least, profile)):
            told["refused"] = why
        return told

    def show(self) -> dict[str, Any]:
        """Returns the operator's rules, and which isolations can give a network."""
        config, trust = self.network, self.trust
        run_code = config.run_code if isinstance(config.run_code, str) else [rule.text for rule in config.run_code]
        return {
            "rules": [rule.text for rule in config.rules],
            "open": config.open,
            "run_code": run_code,
            "hosts": {name: list(map(str, addresses)) for name, addresses in config.hosts.items()},
            "nat64": list(map(str, config.nat64)),
            "limits": config.limits.model_dump(),
            "trust": {"directories": trust.directories, "approve": [rule.text for rule in trust.approve]},
            "isolations": [_ability(offer, self.has_gate) for offer in self.backends.offers],
        }

    async def _whose(self, principal: Principal, params: Mapping[str, Any]) -> tuple[Skill | None, Sequence[Skill]]:
        """Returns the executed skill, and all that such a run mounts."""
        name, names = params.get("skill"), params.get("mount_skills") or ()
        if name is not None and (params["code"] or names):
            raise InvalidInput(
                "skill", "does not go with code and mount_skills: what is mounted adds nothing to a skill"
            )
        skill = None if name is None else await self.skills.find(principal, name, params.get("version"), "skill")
        return skill, await self.skills.mounted(principal, skill, names)

    def _policy(
        self,
        skill: Skill | None,
        mounted: Sequence[Skill],
        asked: tuple[Rule, ...] | None,
        least: str,
        profile: Layer | None,
        *,
        somebody: bool,
    ) -> Policy:
        """Returns the layers as they would be, whether or not such a run is refused."""
        config = self.network
        layers = [Layer(OPERATOR, config.rules)]
        if somebody:
            layers.append(own_layer(config, skill, mounted, least))
        if profile is not None:
            layers.append(profile)
        if asked is not None:
            layers.append(Layer(REQUEST, asked))
        return Policy(tuple(layers), config.hosts, config.nat64)

    def _refusal(
        self,
        skill: Skill | None,
        mounted: Sequence[Skill],
        asked: tuple[Rule, ...] | None,
        least: str,
        profile: Layer | None,
    ) -> str:
        """Returns why a run with this policy would not start, with the default isolation."""
        try:
            policy = granted(self.network, skill, mounted, asked, least, profile)
            if policy is not None and (offer := self.backends.default) is not None:
                check_offer(offer, self.has_gate, policy)
        except Refused as refusal:
            return refusal.message
        return ""


async def _explained(policy: Policy, target: Target, resolving: bool) -> dict[str, Any]:
    """A name that no rule allows is not looked up: the gate would not, either."""
    addresses: Sequence[Address] = ()
    if target.name is not None and policy.ask(target.name, None, target.port).allowed:
        addresses = policy.hosts.get(target.name, ())
        if resolving and not addresses:
            addresses = await resolve(target.name, "targets")
    known = (*addresses, target.address) if target.address is not None else addresses
    return explain(policy, target, addresses, [address for address in known if is_own(address)])


def _ability(offer: Offer, has_gate: bool) -> dict[str, Any]:
    able = ability(offer, has_gate)
    return {"isolation": offer.name, EGRESS: able.level.value, "by": able.by, "why": able.why, "mend": able.mend}
