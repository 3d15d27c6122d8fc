"""How much of a rule the other layers leave, said before anything runs, for people to read.

:class:`skillyard.domain.network.policy.Policy` decides about connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from skillyard.domain.network.policy import Layer
from skillyard.domain.network.rule import PortRanges, Rule
from skillyard.values import dataclass


class Extent(IntEnum):
    NONE = 0
    PART = 1
    WHOLE = 2


@dataclass(frozen=True, slots=True)
class Left:
    """The extent that is left, and ``why`` not more; empty for the whole."""

    extent: Extent
    why: str = ""


def left_of(asked: Rule, layers: Sequence[Layer]) -> Left:
    """Returns the extent of an allow rule that ``layers`` leave.

    WHOLE and NONE are sure, PART is anything between; addresses that the floor closes are not looked at."""
    found = Left(Extent.WHOLE)
    for layer in layers:
        here = _left_by(asked, layer)
        if here.extent < found.extent:
            found = here
    return found


def _left_by(asked: Rule, layer: Layer) -> Left:
    touching = [rule for rule in layer.rules if not rule.deny and _meet(asked, rule)]
    denying = [rule for rule in layer.rules if rule.deny and _meet(asked, rule)]
    if not touching:
        return Left(Extent.NONE, f"no {layer.name} rule allows it")
    whole = next((rule for rule in denying if _within(asked, rule)), None)
    if whole is not None:
        return Left(Extent.NONE, f"denied by {layer.name} rule '{whole.text}'")
    if denying:
        return Left(Extent.PART, f"{layer.name} rule '{denying[0].text}' denies some of it")
    if not any(_within(asked, rule) for rule in touching):
        return Left(Extent.PART, f"{layer.name} rules allow some of it: {touching[0].text}")
    return Left(Extent.WHOLE)


def _meet(one: Rule, other: Rule) -> bool:
    """Returns whether some target and port belongs to both rules.

    A name never meets an address: its addresses are not known yet."""
    return _targets_meet(one, other) and any(
        first <= high and low <= last for first, last in one.ports for low, high in other.ports
    )


def _targets_meet(one: Rule, other: Rule) -> bool:
    if one.everything or other.everything:
        return True
    if one.network is not None or other.network is not None:
        return _networks_meet(one, other)
    if one.below and other.below:
        return _is_below(one.name, other.name) or _is_below(other.name, one.name) or one.name == other.name
    if one.below or other.below:
        wide, narrow = (one, other) if one.below else (other, one)
        return _is_below(narrow.name, wide.name)
    return one.name == other.name


def _networks_meet(one: Rule, other: Rule) -> bool:
    here, there = one.network, other.network
    if here is None or there is None or here.version != there.version:
        return False
    return here.overlaps(there)


def _within(asked: Rule, other: Rule) -> bool:
    """Returns whether every target and port of ``asked`` belongs to ``other``."""
    return _target_within(asked, other) and _ports_within(asked.ports, other.ports)


def _target_within(asked: Rule, other: Rule) -> bool:
    if other.everything:
        return True
    if asked.everything:
        return False
    if asked.network is not None or other.network is not None:
        here, there = asked.network, other.network
        if here is None or there is None or here.version != there.version:
            return False
        return here.network_address in there and here.broadcast_address in there
    if other.below:
        return _is_below(asked.name, other.name) or (asked.below and asked.name == other.name)
    return not asked.below and asked.name == other.name


def _ports_within(asked: PortRanges, other: PortRanges) -> bool:
    merged: list[list[int]] = []
    for low, high in sorted(other):
        if merged and low <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], high)
        else:
            merged.append([low, high])
    return all(any(low <= first and last <= high for low, high in merged) for first, last in asked)


def _is_below(name: str, domain: str) -> bool:
    return name.endswith("." + domain)
