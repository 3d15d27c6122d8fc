"""Giving back the exact bundle of a version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.skill import Skill
from skillyard.engine.skills.discovery import find_skill
from skillyard.ports.bundles import ArchiveForm, Exported

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine

LATEST = "latest"


async def find_exported(engine: Engine, principal: Principal, name: str, version: str) -> Skill:
    """The version, or what ``latest`` means. Raises Forbidden, SkillNotFound."""
    principal.require(Scope.DISCOVER)
    return await find_skill(engine, principal, name, None if version == LATEST else version)


@asynccontextmanager
async def export(engine: Engine, principal: Principal, skill: Skill, form: ArchiveForm) -> AsyncIterator[Exported]:
    """The archive of a skill that :func:`find_exported` found, made while the block is entered. Raises Busy,
    StoreFault."""
    registry = engine.registry
    with registry.downloads.holding(principal.name):
        async with registry.bundles.export(skill, form) as archive:
            yield archive
