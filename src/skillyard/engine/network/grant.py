"""The network that a run is granted: the layers of its policy, or a refusal with its reason.

The operator's layer bounds what a skill declares or what code gets, and that what a request narrows. Skills that are
mounted beside an executed one, or required by it, add nothing. ``least`` says why a run gets nothing that its skills
declare (:class:`skillyard.engine.skills.standings.RunTrust`), and is empty for one that does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from skillyard.config.network import NetworkSettings
from skillyard.config.profiles import ProfileSettings
from skillyard.domain.network.policy import OPERATOR, PROFILE, Layer, Policy, is_open, parse_rules
from skillyard.domain.network.rule import Rule
from skillyard.domain.principal import Principal
from skillyard.domain.sandbox.guarantees import Level, Protection
from skillyard.domain.skill.skill import Skill
from skillyard.engine.runs.failure import Refused

if TYPE_CHECKING:
    from skillyard.engine.backends import Offer

SKILL, CODE, REQUEST = "skill", "code", "request"
EGRESS, DIRECT = "egress", "direct"
_BY_PROXY = Protection(
    Level.MISSING, why="the gate is found there through a proxy alone", mend="use the isolation 'native'"
)
_SHOWN = 8
_CONSENT = "and the operator has not consented to that (network.open)"


def granted(
    config: NetworkSettings,
    skill: Skill | None,
    mounted: Sequence[Skill],
    asked: tuple[Rule, ...] | None,
    least: str = "",
    profile: Layer | None = None,
) -> Policy | None:
    """Returns the policy, or None for no network. ``asked`` are the rules of the request, None when it has none.
    ``profile`` is the bound of the profile of the run's token, None when it has none.

    Raises Refused for a layer that asks for more than the layers above it give.
    """
    if asked is not None and not _allows(asked):
        return None
    if not _allows(_own_rules(config, skill, mounted, least)):
        if asked is not None:
            why = _nothing_of(config, skill, mounted, least)
            raise _refused(f"the request asks for the network ({listed(asked)}), and {why}")
        return None
    own = own_layer(config, skill, mounted, least)
    who = f"'{skill.name}' asks" if skill is not None else "the code asks"
    _check_consent(config, own, who)
    layers = [Layer(OPERATOR, config.rules), own, *([profile] if profile is not None else [])]
    if asked is not None:
        layers.append(Layer(REQUEST, asked))
        _check_consent(config, layers[-1], "the request asks")
    policy = Policy(tuple(layers), config.hosts, config.nat64)
    if policy.nothing:
        bound = "no operator rule allows any (network.rules)"
        if profile is not None and not _allows(profile.rules):
            bound = "the profile of the token allows none"
        raise _refused(f"{who} for the network ({listed(own.rules)}), and {bound}")
    return policy


def why_none(
    config: NetworkSettings,
    skill: Skill | None,
    mounted: Sequence[Skill],
    asked: tuple[Rule, ...] | None,
    least: str = "",
) -> str:
    """Returns why :func:`granted` gave no network, for a run that needed one."""
    if asked is not None and _allows(_own_rules(config, skill, mounted, least)):
        return "the request asked for none"
    if skill is not None and not _allows(parse_rules(skill.needs.network)):
        return f"'{skill.name}' declares no hosts (permissions.network of its manifest)"
    return _nothing_of(config, skill, mounted, least)


def profile_layer(profiles: Mapping[str, ProfileSettings], principal: Principal) -> Layer | None:
    """Returns the bound that a principal's profile sets to its runs; None when it sets none."""
    section = None if principal.profile is None else profiles.get(principal.profile)
    return None if section is None or section.network is None else Layer(PROFILE, section.network)


def own_layer(config: NetworkSettings, skill: Skill | None, mounted: Sequence[Skill], least: str = "") -> Layer:
    """Returns the layer of the executed skill, or that of code by policy."""
    return Layer(CODE if skill is None else SKILL, _own_rules(config, skill, mounted, least))


def _own_rules(
    config: NetworkSettings, skill: Skill | None, mounted: Sequence[Skill], least: str = ""
) -> tuple[Rule, ...]:
    """Returns the rules of that layer. Rules that the operator gives to any code stay with ``least``."""
    if skill is not None:
        return () if least else parse_rules(skill.needs.network)
    if config.run_code != "mounted":
        return config.run_code
    if least:
        return ()
    texts = dict.fromkeys(text for other in mounted for text in other.needs.network)
    return tuple(rule for text in texts for rule in parse_rules([text]))


def check_offer(offer: Offer, has_gate: bool, what: Policy | str) -> None:
    """Raises Refused when the run's backend cannot give it a network, or there is no gate.

    ``what`` is the policy, or names another use of the gate, which takes more than a proxy."""
    able = ability(offer, has_gate)
    if isinstance(what, str) and able.level is not Level.MISSING:
        able = offer.probe.abilities.get(DIRECT, _BY_PROXY)
    if able.level is Level.MISSING:
        said = "; ".join(filter(None, (able.why, able.mend)))
        needs = f"the run needs the network ({what if isinstance(what, str) else listed(what.layers[1].rules)})"
        raise _refused(f"{needs}, and isolation '{offer.name}' cannot give it{f': {said}' if said else ''}")


def ability(offer: Offer, has_gate: bool) -> Protection:
    """Returns whether runs of a backend can have a network here, and if not, why and how."""
    able = offer.probe.abilities.get(EGRESS, Protection(Level.MISSING, why="the backend does not offer it"))
    if able.level is not Level.MISSING and not has_gate:
        return Protection(Level.MISSING, why="this server has no gate")
    return able


def layers_of(policy: Policy) -> list[dict[str, Any]]:
    """Returns the layers as they stand in a record."""
    return [{"name": layer.name, "rules": layer.texts()} for layer in policy.layers]


def listed(rules: Sequence[Rule]) -> str:
    """Returns the first rules, for a message."""
    more = f" and {len(rules) - _SHOWN} more" if len(rules) > _SHOWN else ""
    return ", ".join(rule.text for rule in rules[:_SHOWN]) + more


def _allows(rules: Sequence[Rule]) -> bool:
    return any(not rule.deny for rule in rules)


def _check_consent(config: NetworkSettings, layer: Layer, who: str) -> None:
    wide = next((rule for rule in layer.rules if is_open([rule])), None)
    if wide is not None and not config.open:
        raise _refused(f"{who} for every host ({layer.name} rule '{wide.text}'), {_CONSENT}")


def _nothing_of(config: NetworkSettings, skill: Skill | None, mounted: Sequence[Skill], least: str) -> str:
    if least and _allows(_own_rules(config, skill, mounted)):
        return least
    if skill is not None:
        return f"'{skill.name}' declares none: a request only narrows what a skill declares"
    if config.run_code == "mounted":
        return "no mounted skill declares any (network.run_code = 'mounted')"
    return "the operator gives code none (network.run_code)"


def _refused(message: str) -> Refused:
    return Refused("PolicyRefused", message)
