"""The declared needs of one skill, one a row, each with its grant and the reason for less."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from skillyard.config.packages import PackagesSettings
from skillyard.domain.network.extent import Extent, Left, left_of
from skillyard.domain.network.policy import Layer, is_open, parse_rules
from skillyard.domain.package.names import admits
from skillyard.domain.secret import Delivery
from skillyard.domain.skill.skill import RuntimeSpec, SecretNeed, Skill
from skillyard.domain.skill.trust import Standing
from skillyard.domain.work.limits import Limits
from skillyard.engine.packages.asked import required_name
from skillyard.engine.skills.standings import packages_allowed
from skillyard.values import dataclass

NETWORK, SECRET, LIMIT, REQUIRES, PACKAGE, ENVIRONMENT, IMAGE, TOOL = (
    "network",
    "secret",
    "limit",
    "requires",
    "package",
    "environment",
    "image",
    "tool",
)
IN_PART = "in part"
_UNCONSENTED = Left(Extent.NONE, "the operator has not consented to every host (network.open)")
_USUAL = RuntimeSpec("", "", "").environment


@dataclass(frozen=True, slots=True)
class Row:
    """``granted`` is empty when nothing is; ``why`` is the reason for less than the whole."""

    need: str
    asked: str
    granted: str = ""
    why: str = ""

    def as_dict(self, longest: int) -> dict[str, str]:
        """Returns the fields that are not empty, each text in at most ``longest`` characters."""
        fields = {"need": self.need, "asked": self.asked, "granted": self.granted, "why": self.why}
        return {name: _cut(text, longest) for name, text in fields.items() if text}


def declares(skill: Skill) -> bool:
    """Returns whether a skill asks for anything at all."""
    needs = skill.needs
    asked = (needs.network, needs.secrets, needs.limits, needs.requires, needs.dependencies, needs.tools)
    return any(asked) or bool(image_of(skill)) or environment_of(skill) not in ("", _USUAL)


def environment_of(skill: Skill) -> str:
    return skill.runtime.environment if skill.runtime else ""


def image_of(skill: Skill) -> str:
    return skill.runtime.image if skill.runtime else ""


def network_rows(skill: Skill, others: Sequence[Layer], consent: bool, against: str = "") -> Iterable[Row]:
    """Yields the rows of hosts. ``others`` are the layers that bound the skill's rules.

    ``consent`` is the operator's to every host; ``against`` is a reason to grant nothing of the rest."""
    for rule in parse_rules(skill.needs.network):
        if rule.deny:
            continue
        left = left_of(rule, others)
        if is_open([rule]) and not consent:
            left = _UNCONSENTED
        granted = {Extent.WHOLE: rule.text, Extent.PART: IN_PART, Extent.NONE: ""}[left.extent]
        if against and granted:
            yield Row(NETWORK, rule.text, why=against)
        else:
            yield Row(NETWORK, rule.text, granted, left.why)


def secret_rows(skill: Skill, given: Mapping[str, str], against: str = "", absent: str = "") -> Iterable[Row]:
    """Yields the rows of secrets. ``given`` are deliveries by name; ``absent`` is the reason for another."""
    for need in skill.needs.secrets:
        granted = "" if against else given.get(need.name, "")
        yield Row(SECRET, _asked_secret(need), granted, against or ("" if granted else absent))


def delivery(kind: Delivery, hosts: Iterable[str]) -> str:
    """``env``, or ``gate: api.x.com``."""
    return f"{kind.value}: {', '.join(hosts)}" if kind is Delivery.GATE else kind.value


def _asked_secret(need: SecretNeed) -> str:
    kind = "" if need.delivery is Delivery.ENV else f", {delivery(need.delivery, need.hosts)}"
    return f"{need.name}{kind}{', optional' if need.optional else ''}"


def limit_rows(skill: Skill, granted: Limits, request: Mapping[str, Any], cap: str, against: str = "") -> Iterable[Row]:
    """Yields the rows of limits. ``request`` are those that the request named, ``cap`` is the bound of a manifest."""
    for name, value in skill.needs.limits.items():
        asked = f"{name}={value}"
        if against:
            yield Row(LIMIT, asked, why=against)
        elif (here := getattr(granted, name, None)) is not None:
            why = "" if here == value else "the request names it" if name in request else cap
            yield Row(LIMIT, asked, f"{name}={here}", why)


def requires_rows(skill: Skill, chosen: Mapping[str, str]) -> Iterable[Row]:
    """Yields the rows of required skills. ``chosen`` are the versions by name."""
    for text in skill.needs.requires:
        name = text.partition(" ")[0]
        yield Row(REQUIRES, text, f"{name} {chosen[name]}" if name in chosen else "")


def package_rows(
    skill: Skill, standing: Standing, config: PackagesSettings, installed: Mapping[str, str], against: str = ""
) -> Iterable[Row]:
    """Yields the rows of packages. ``installed`` are the versions by normalized name."""
    for text in skill.needs.dependencies:
        name = required_name(text)
        if version := installed.get(name):
            yield Row(PACKAGE, text, f"{name} {version}")
        elif not packages_allowed(standing, [name], config):
            setting = "run_code" if admits(config.allow, name) else "allow"
            yield Row(PACKAGE, text, why=f"packages.{setting} does not admit it")
        else:
            yield Row(PACKAGE, text, "" if against else name, against)


def environment_rows(skill: Skill, used: str, against: str = "") -> Iterable[Row]:
    asked = environment_of(skill)
    if asked in ("", _USUAL):
        return
    if against:
        yield Row(ENVIRONMENT, asked, why=against)
    else:
        yield Row(ENVIRONMENT, asked, used, "" if used == asked else "the request names it")


def image_rows(skill: Skill, used: str, against: str = "") -> Iterable[Row]:
    if asked := image_of(skill):
        yield Row(IMAGE, asked, "" if against else used, against)


def tool_rows(
    skill: Skill, granted: Collection[str], against: str = "", absent: str = "no such tool is offered"
) -> Iterable[Row]:
    """Yields the rows of tools. ``granted`` are full names; ``absent`` is the reason for a pattern without one."""
    for pattern in skill.needs.tools:
        found = sorted(name for name in granted if fnmatchcase(name, pattern))
        if against or not found:
            yield Row(TOOL, pattern, why=against or absent)
        else:
            yield Row(TOOL, pattern, ", ".join(found))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
