"""Withdrawing, restoring and pinning what was published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from skillyard.domain.errors import SkillNotFound
from skillyard.domain.principal import Principal
from skillyard.domain.skill.publication import Pin, PublicationAct
from skillyard.domain.unicode import check_unicode
from skillyard.engine.skills.approval_methods import end_approvals
from skillyard.engine.skills.ownership import check_claim
from skillyard.engine.skills.registry import Registry
from skillyard.engine.skills.views import publication_view

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine

Params = Mapping[str, Any]


async def withdraw(engine: Engine, principal: Principal, params: Params) -> dict[str, Any]:
    check_unicode("reason", params["reason"])
    return await engine.registry.change(_withdraw(engine.registry, principal, params))


async def restore(engine: Engine, principal: Principal, params: Params) -> dict[str, Any]:
    return await engine.registry.change(_restore(engine, principal, params))


async def pin(engine: Engine, principal: Principal, params: Params) -> dict[str, Any]:
    return await engine.registry.change(_pin(engine.registry, principal, params))


async def unpin(engine: Engine, principal: Principal, params: Params) -> dict[str, Any]:
    return await engine.registry.change(_unpin(engine.registry, principal, params))


async def _withdraw(registry: Registry, principal: Principal, params: Params) -> dict[str, Any]:
    name, version = params["name"], params["version"]
    await _check_published(registry, principal, name, version)
    gone = await registry.publications.withdraw(
        name, version, at=registry.clock.now(), by=principal.name, reason=params["reason"]
    )
    if gone is None:
        raise _unpublished(name, version)
    told = gone.publication
    if gone.changed:
        act = PublicationAct.WITHDRAWN
        await registry.changed(act, principal, told.name, told.version, told.digest, told.project)
    return {**publication_view(told), "changed": gone.changed, "unpinned": gone.unpinned}


async def _restore(engine: Engine, principal: Principal, params: Params) -> dict[str, Any]:
    """What was approved of it is to be approved again: it was withdrawn for a reason."""
    registry, name, version = engine.registry, params["name"], params["version"]
    await _check_published(registry, principal, name, version)
    before = await registry.publications.find(name, version)
    if before is not None and before.withdrawn:
        await end_approvals(engine, principal, name, before.version, "restored")
    told = await registry.publications.restore(name, version, at=registry.clock.now(), by=principal.name)
    if before is None or told is None:
        raise _unpublished(name, version)
    if before.withdrawn:
        act = PublicationAct.RESTORED
        await registry.changed(act, principal, told.name, told.version, told.digest, told.project)
    return {**publication_view(told), "changed": before.withdrawn}


async def _pin(registry: Registry, principal: Principal, params: Params) -> dict[str, Any]:
    """A version that is served: one that was withdrawn, or is nowhere, cannot be the latest."""
    name = params["name"]
    await check_claim(registry, principal, name)
    skill = await registry.skills.get(name, params["version"])
    wanted = Pin(name, skill.version, registry.clock.now(), principal.name)
    stored = await registry.publications.pin(wanted)
    if stored is wanted:
        owner = await registry.publications.owner(name) or principal.project
        await registry.changed(PublicationAct.PINNED, principal, name, skill.version, skill.digest, owner)
    facts = {"pinned_at": stored.pinned_at, "pinned_by": stored.pinned_by, "changed": stored is wanted}
    return {"name": name, "version": skill.version, "digest": skill.digest, **facts}


async def _unpin(registry: Registry, principal: Principal, params: Params) -> dict[str, Any]:
    name = params["name"]
    await check_claim(registry, principal, name)
    now = registry.clock.now()
    gone = await registry.publications.unpin(name, at=now, by=principal.name)
    if gone is not None:
        owner = await registry.publications.owner(name) or principal.project
        await registry.changed(PublicationAct.UNPINNED, principal, name, gone.version, "", owner)
    latest = await _latest(registry, name)
    if gone is None and latest is None and await registry.publications.owner(name) is None:
        raise SkillNotFound("name", f"no skill '{name[:256]}'", skill=name[:256])
    facts = {} if gone is None else {"unpinned_at": now, "unpinned_by": principal.name}
    return {"name": name, "unpinned": None if gone is None else gone.version, **facts, "latest": latest}


async def _latest(registry: Registry, name: str) -> str | None:
    try:
        return (await registry.skills.get(name)).version
    except SkillNotFound:
        return None


async def _check_published(registry: Registry, principal: Principal, name: str, version: str) -> None:
    """Raises SkillNotFound for what was never published, also to those who may not know whether it was; Forbidden."""
    if not principal.may_use(name) or await registry.publications.owner(name) is None:
        raise _unpublished(name, version)
    await check_claim(registry, principal, name)


def _unpublished(name: str, version: str) -> SkillNotFound:
    rule = f"no version '{version}' of '{name[:256]}' was published (what lies in a directory is changed there)"
    return SkillNotFound("version", rule, skill=name[:256])
