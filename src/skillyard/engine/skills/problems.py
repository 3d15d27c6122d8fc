"""``catalogue.problems``: what lies in the directories of skills and is not served, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from skillyard.domain.principal import Principal, Scope
from skillyard.engine.method import INTEGER, Method, answer, described, list_of, obj
from skillyard.engine.shapes import FINDING
from skillyard.engine.skills.service import SkillService


async def list_problems(skills: SkillService, _principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    found = await skills.store.problems()
    return {"problems": [asdict(problem) for problem in found[: params["limit"]]], "total": len(found)}


TABLE = (
    Method(
        name="catalogue.problems",
        doc="Skills in directories that are not served, versions that others hide, and what the search had to say.",
        params=obj({"limit": {"type": "integer", "minimum": 1, "maximum": 5000, "default": 500}}),
        example={"limit": 20},
        result=answer(
            {
                "problems": list_of(FINDING, "as validation gives them"),
                "total": described(INTEGER, "of all that there are"),
            }
        ),
        scope=Scope.ADMIN,
        errors=(),
        surface="operator",
        handler=list_problems,
        service=SkillService,
    ),
)
