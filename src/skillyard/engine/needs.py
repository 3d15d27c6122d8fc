"""What skills declare that they need, beside what operators let them have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skillyard.domain.approval import Standing
from skillyard.domain.skill import Skill, SkillSource

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine


async def standing_of(_engine: Engine, skill: Skill) -> Standing:
    """Whether the skill's declared needs are approved, and by what."""
    if skill.source is SkillSource.PUBLISHED:
        return Standing(False, "nobody")
    return Standing(True, "directory")
