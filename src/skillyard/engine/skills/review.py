"""``catalogue.review``: what a reader should know of a version before trusting it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from skillyard.domain.errors import SkillNotFound
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.review import File, Review, review
from skillyard.domain.skill.skill import Skill
from skillyard.engine.method import OBJECT, SKILL_NAME, STRING, VERSION, Method, answer, described, list_of, obj
from skillyard.engine.skills.discovery import find_skill
from skillyard.engine.threads import to_its_end

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine

KEPT = 64
"""Reviews that are remembered: a version never changes, nor does what there is to say of it."""


class Reviews:
    """Made on a thread, one at a time, since they take processor time in proportion to the bundle. Lives on one event
    loop."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[str, str], Review] = OrderedDict()
        self._turn = asyncio.Lock()

    async def of(self, skill: Skill) -> Review:
        """Raises OSError for a snapshot that cannot be read."""
        key = (skill.digest, skill.name)
        async with self._turn:
            if key not in self._made:
                self._made[key] = await to_its_end(_reviewed, skill)
            self._made.move_to_end(key)
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
            return self._made[key]


def _reviewed(skill: Skill) -> Review:
    return review([_read(skill, file.path) for file in skill.files], skill)


def _read(skill: Skill, path: str) -> File:
    """Of a snapshot, whose executable files have mode 0555."""
    place = skill.root / path
    return File(path, place.read_bytes(), bool(place.stat().st_mode & 0o100))


async def review_skill(engine: Engine, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    skill = await find_skill(engine, principal, params["name"], params.get("version"))
    made = await engine.reviews.of(skill)
    return {
        "name": skill.name,
        "version": skill.version,
        "digest": skill.digest,
        "source": skill.source.value,
        **made.as_dict(),
        "validation": [asdict(finding) for finding in skill.findings],
    }


TABLE = (
    Method(
        name="catalogue.review",
        doc="What a reader should know of a skill before trusting it, from its files alone; nothing of it is executed.",
        params=obj({"name": SKILL_NAME, "version": VERSION}, "name"),
        result=answer(
            {
                "name": STRING,
                "version": STRING,
                "digest": STRING,
                "source": STRING,
                "needs": described(OBJECT, "what it declares: network, secrets, dependencies, requires, limits"),
                "imports": described(OBJECT, "of its Python code: standard, declared, own, skills, undeclared"),
                "hosts": list_of(STRING, "that its URLs name"),
                "counts": described(OBJECT, "findings by level: danger, warning, note"),
                "findings": list_of(OBJECT, "the gravest first: level, file, line, rule, message, mend"),
                "validation": list_of(OBJECT, "what validation had to say of it, in the same form"),
            },
            *("name", "version", "digest", "needs", "imports", "hosts", "counts", "findings", "validation"),
        ),
        errors=(SkillNotFound,),
        handler=review_skill,
        scope=Scope.DISCOVER,
        surface="operator",
    ),
)
