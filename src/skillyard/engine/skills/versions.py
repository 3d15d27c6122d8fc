"""Every version of one name: what is served, what was withdrawn, and who did what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from skillyard.domain.errors import SkillNotFound
from skillyard.domain.principal import Principal
from skillyard.domain.skill.publication import Pin
from skillyard.domain.skill.semver import newest_first
from skillyard.domain.skill.skill import Skill, SkillSource
from skillyard.engine.skills.registry import Registry
from skillyard.engine.skills.views import event_view, publication_view, served_view

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine


async def list_versions(engine: Engine, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    name, registry = params["name"], engine.registry
    unknown = SkillNotFound("name", f"no skill '{name[:256]}'", skill=name[:256])
    if not principal.may_use(name):
        raise unknown
    published = {told.version: publication_view(told) for told in await registry.publications.of(name)}
    served = await _served(registry, name)
    views = {**published, **{skill.version: served_view(skill) for skill in served if _is_elsewhere(skill)}}
    if not views:
        raise unknown
    latest, pin = await _latest(registry, name), await registry.publications.pinned(name)
    return {
        "name": name,
        "latest": latest,
        "pin": _pin_view(pin),
        "project": await registry.publications.owner(name),
        "versions": [{**views[version], "latest": version == latest} for version in newest_first(views)],
        "history": [event_view(event) for event in await registry.publications.history(name, limit=params["history"])],
    }


async def _served(registry: Registry, name: str) -> list[Skill]:
    try:
        return [await registry.skills.get(name, version) for version in await registry.skills.versions(name)]
    except SkillNotFound:  # there are none, or one was withdrawn meanwhile
        return []


def _is_elsewhere(skill: Skill) -> bool:
    return skill.source is not SkillSource.PUBLISHED


async def _latest(registry: Registry, name: str) -> str | None:
    try:
        return (await registry.skills.get(name)).version
    except SkillNotFound:
        return None


def _pin_view(pin: Pin | None) -> dict[str, Any] | None:
    return None if pin is None else {"version": pin.version, "at": pin.pinned_at, "by": pin.pinned_by}
