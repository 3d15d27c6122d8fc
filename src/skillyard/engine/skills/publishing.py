"""Publishing: an archive becomes an immutable version of a skill, whole or not at all.

Nothing is stored before everything was checked. Then the bytes come first and the row that names them second: whatever
dies in between leaves a snapshot that no row names, which the next start removes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skillyard.domain.errors import SkillNotFound
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.publication import Publication, PublicationAct, place_of
from skillyard.domain.skill.publication_rules import served_refusal
from skillyard.domain.skill.skill import Finding, Skill, SkillSource
from skillyard.engine.skills.ownership import check_claim, is_admin
from skillyard.engine.skills.registry import Registry
from skillyard.ports.bundles import Arrived

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Published:
    """``created`` is False when these bytes were published before. ``findings`` are warnings and notes."""

    publication: Publication
    created: bool
    findings: tuple[Finding, ...]


async def publish(engine: Engine, principal: Principal, chunks: AsyncIterator[bytes]) -> Published:
    """Publish the bundle in an archive. Nothing is read from ``chunks`` unless the principal may publish at all.

    Raises Forbidden, BundleRefused, VersionTaken, QuotaExceeded, Busy, StoreFault, and what ``chunks`` raises.
    """
    principal.require(Scope.PUBLISH)
    registry = engine.registry
    with registry.uploads.holding(principal.name):
        arrived = await registry.bundles.receive(chunks)
        return await registry.change(_take_in(registry, principal, arrived))


async def _take_in(registry: Registry, principal: Principal, arrived: Arrived) -> Published:
    skill, admin = arrived.skill, is_admin(principal)
    await check_claim(registry, principal, skill.name)
    wanted = _publication(skill, principal, registry.clock.now())
    await registry.publications.check(wanted, any_project=admin)
    await _check_directories(registry, wanted)
    await arrived.keep()
    stored = await registry.publications.insert(wanted, any_project=admin)
    told = stored.publication
    if stored.created:
        act = PublicationAct.PUBLISHED
        await registry.changed(act, principal, told.name, told.version, told.digest, told.project)
    else:
        await registry.skills.refresh(told.name)  # its snapshot may have been damaged until now
    return Published(told, stored.created, skill.findings)


def _publication(skill: Skill, principal: Principal, now: float) -> Publication:
    return Publication(
        name=skill.name,
        version=skill.version,
        digest=skill.digest,
        published_at=now,
        published_by=principal.name,
        project=principal.project,
        size=sum(file.size for file in skill.files),
        files=len(skill.files),
    )


async def _check_directories(registry: Registry, wanted: Publication) -> None:
    """Raises VersionTaken when a directory serves that version with other content."""
    try:
        versions = await registry.skills.versions(wanted.name)
    except SkillNotFound:
        return
    for version in versions:
        if place_of(version) == place_of(wanted.version):
            served = await registry.skills.get(wanted.name, version)
            if served.source is not SkillSource.PUBLISHED and served.digest != wanted.digest:
                raise served_refusal(wanted, served.digest)
