"""Differences of two versions in their needs, runtime and descriptions for models."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from skillyard.domain.errors import InvalidInput
from skillyard.domain.package.names import normalized
from skillyard.domain.secret import Delivery
from skillyard.domain.skill.requirement import Requirement
from skillyard.domain.skill.skill import Needs, SecretNeed, Skill
from skillyard.values import dataclass


class Change(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class NeedChange:
    """A need that differs.

    ``need`` is ``network``, ``secrets``, ``tools``, ``dependencies``, ``requires`` or ``limits``; ``name`` the rule,
    secret, tool, package, skill or limit; ``before`` and ``after`` its declarations, empty where there is none.

    ``widens``: it asks for more than before or for something else, so an earlier approval does not cover it.
    """

    need: str
    name: str
    change: Change
    before: str
    after: str
    widens: bool


def diff_needs(old: Needs, new: Needs) -> list[NeedChange]:
    """Returns the differences: those that widen first, then by kind and name."""
    found = [
        *_network(old.network, new.network),
        *_secrets(old.secrets, new.secrets),
        *_named("tools", {name: name for name in old.tools}, {name: name for name in new.tools}),
        *_named("dependencies", _by(old.dependencies, _package), _by(new.dependencies, _package)),
        *_named("requires", _by(old.requires, _skill), _by(new.requires, _skill)),
        *_limits(old.limits, new.limits),
    ]
    return sorted(found, key=lambda change: not change.widens)


def _network(old: Iterable[str], new: Iterable[str]) -> Iterator[NeedChange]:
    """Yields changed rules: an allowing one widens when added, a denying one when removed."""
    before, after = dict.fromkeys(old), dict.fromkeys(new)
    for rule in (*after, *(rule for rule in before if rule not in after)):
        if rule not in before:
            yield NeedChange("network", rule, Change.ADDED, "", rule, not rule.startswith("!"))
        elif rule not in after:
            yield NeedChange("network", rule, Change.REMOVED, rule, "", rule.startswith("!"))


def _secrets(old: Iterable[SecretNeed], new: Iterable[SecretNeed]) -> Iterator[NeedChange]:
    before, after = {need.name: need for need in old}, {need.name: need for need in new}
    for name in _names(before, after):
        was, now = before.get(name), after.get(name)
        if was != now:
            yield _changed("secrets", name, _secret_text(was), _secret_text(now), _reaches(was, now))


def _secret_text(need: SecretNeed | None) -> str | None:
    if need is None:
        return None
    words = ["optional" if need.optional else "required", f"by {need.delivery.value}"]
    return ", ".join([*words, f"for {' '.join(need.hosts)}"] if need.hosts else words)


def _reaches(was: SecretNeed | None, now: SecretNeed | None) -> bool:
    """Returns whether the secret goes where it did not go before."""
    if was is None or now is None:
        return now is not None
    told = was.delivery is Delivery.GATE and now.delivery is not Delivery.GATE
    return told or not set(now.hosts) <= set(was.hosts) or (was.optional and not now.optional)


def _limits(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[NeedChange]:
    for name in _names(old, new):
        was, now = old.get(name), new.get(name)
        if was != now:
            more = not (isinstance(was, int | float) and isinstance(now, int | float) and now < was)
            yield _changed("limits", name, _limit_text(was), _limit_text(now), more and now is not None)


def _limit_text(value: object) -> str | None:
    return None if value is None else str(value)


def _named(need: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[NeedChange]:
    for name in _names(before, after):
        was, now = before.get(name), after.get(name)
        if was != now:
            yield _changed(need, name, was, now, now is not None)


def _changed(need: str, name: str, was: str | None, now: str | None, widens: bool) -> NeedChange:
    change = Change.ADDED if was is None else Change.REMOVED if now is None else Change.CHANGED
    return NeedChange(need, name, change, was or "", now or "", widens)


def _names(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return sorted({*before, *after})


def _by(texts: Iterable[str], name: Callable[[str], str]) -> dict[str, str]:
    """Returns the texts by name; one name may have several, with different markers."""
    found: dict[str, list[str]] = {}
    for text in texts:
        found.setdefault(name(text), []).append(" ".join(text.split()))
    return {key: "; ".join(sorted(values)) for key, values in found.items()}


def _package(text: str) -> str:
    match = _NAME.match(text.strip())
    return normalized(match[0]) if match else text


def _skill(text: str) -> str:
    try:
        return Requirement.parse(text).name
    except InvalidInput:
        return text


MAX_FACT = 2000
"""Characters of a value that are shown."""


@dataclass(frozen=True, slots=True)
class FactChange:
    """A value that differs; ``before`` and ``after`` are empty where a version has none."""

    field: str
    before: str
    after: str


def diff_facts(old: Skill, new: Skill) -> list[FactChange]:
    before, after = dict(_facts(old)), dict(_facts(new))
    changed = [FactChange(field, before[field], after[field]) for field in before if before[field] != after[field]]
    schemas = [
        FactChange(field, "one" if was else "none", "another" if was and now else "one" if now else "none")
        for field, was, now in (
            ("inputs schema", old.inputs_schema, new.inputs_schema),
            ("outputs schema", old.outputs_schema, new.outputs_schema),
        )
        if was != now
    ]
    return changed + schemas


def _facts(skill: Skill) -> Iterator[tuple[str, str]]:
    runtime = skill.runtime
    yield "kind", skill.kind.value
    yield "format", skill.format.value
    yield "language", runtime.language if runtime else ""
    yield "entrypoint", f"{runtime.entrypoint}:{runtime.export}" if runtime else ""
    yield "environment", runtime.environment if runtime else ""
    yield "image", runtime.image if runtime else ""
    yield "description", skill.description[:MAX_FACT]
    yield "short description", skill.short_description[:MAX_FACT]
    yield "tags", ", ".join(skill.tags)[:MAX_FACT]
