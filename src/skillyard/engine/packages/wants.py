"""Which packages a planned run asks for, and who asks for which."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skillyard.config.packages import EnvironmentSettings
from skillyard.domain.package.environment import Wanted
from skillyard.domain.skill.skill import Skill

if TYPE_CHECKING:
    from skillyard.engine.runs.plan import Plan


@dataclass(frozen=True, slots=True)
class Asked:
    """``skill`` is the one that declares ``requirements``, None for the request itself."""

    requirements: tuple[str, ...]
    skill: Skill | None = None

    def __str__(self) -> str:
        return "the request" if self.skill is None else f"'{self.skill.name}'"


def asked_by(plan: Plan) -> tuple[Asked, ...]:
    """Everybody who asks for packages beside the operator's named environment."""
    asked = [Asked(skill.needs.dependencies, skill) for skill in plan.skills if skill.needs.dependencies]
    if plan.request.packages:
        asked.append(Asked(plan.request.packages))
    return tuple(asked)


def union(definition: EnvironmentSettings, asked: Iterable[Asked]) -> Wanted:
    """One set for the named environment and all that is asked for on top of it."""
    return Wanted.of([*definition.packages, *(text for who in asked for text in who.requirements)])
