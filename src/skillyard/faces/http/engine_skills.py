"""The engine's registry as ``/skills`` serves it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from skillyard.domain.principal import Principal
from skillyard.domain.skill.skill import Finding, Skill
from skillyard.engine.engine import Engine
from skillyard.engine.skills.export import export, find_exported
from skillyard.engine.skills.publishing import Published, publish
from skillyard.engine.skills.views import publication_view
from skillyard.ports.bundles import ArchiveForm, Exported


@dataclass(frozen=True, slots=True)
class EngineOutcome:
    """A :class:`skillyard.faces.http.skills.Outcome`."""

    published: Published

    @property
    def created(self) -> bool:
        return self.published.created

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.published.findings

    def facts(self) -> dict[str, Any]:
        return {**publication_view(self.published.publication), "created": self.created}


class EngineSkills:
    """A :class:`skillyard.faces.http.skills.SkillAccess`. ``engine`` is asked for at each call: a server listens
    before its engine has started."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    async def publish(self, principal: Principal, chunks: AsyncIterator[bytes]) -> EngineOutcome:
        return EngineOutcome(await publish(self._engine(), principal, chunks))

    async def find(self, principal: Principal, name: str, version: str) -> Skill:
        return await find_exported(self._engine(), principal, name, version)

    def export(self, principal: Principal, skill: Skill, form: ArchiveForm) -> AbstractAsyncContextManager[Exported]:
        return export(self._engine(), principal, skill, form)
