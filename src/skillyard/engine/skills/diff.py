"""``catalogue.diff``: what a version asks for, is and holds that another did not."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from skillyard.domain.diff import FileSide, Side, SkillDiff, diff_skills
from skillyard.domain.errors import SkillNotFound, StoreFault
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.skill import Skill
from skillyard.engine.method import (
    BOOLEAN,
    OBJECT,
    SKILL_NAME,
    STRING,
    VERSION,
    Method,
    answer,
    described,
    list_of,
    obj,
)
from skillyard.engine.skills.discovery import find_skill
from skillyard.engine.threads import to_its_end

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine


class Diffs:
    """Made on a thread, one at a time: two large versions take a processor for a second. Lives on one event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def of(self, old: Skill, new: Skill) -> SkillDiff:
        """Raises StoreFault for a snapshot that cannot be read."""
        async with self._turn:
            return await to_its_end(_compared, old, new)


async def compare(engine: Engine, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    old = await find_skill(engine, principal, params["name"], params["from"])
    new = await find_skill(engine, principal, params["name"], params.get("to"))
    found = await engine.diffs.of(old, new)
    return {
        "name": new.name,
        "from": {"version": old.version, "digest": old.digest},
        "to": {"version": new.version, "digest": new.digest},
        "same": found.same,
        "widens": found.widens,
        "needs": [asdict(change) for change in found.needs],
        "facts": [asdict(change) for change in found.facts],
        "files": [asdict(change) for change in found.files],
    }


def _compared(old: Skill, new: Skill) -> SkillDiff:
    try:
        return diff_skills(_side(old), _side(new))
    except OSError as error:
        raise StoreFault(f"a version's snapshot cannot be read: {error.strerror}") from error


def _side(skill: Skill) -> Side:
    """Of a snapshot, whose executable files have mode 0555."""
    files = {}
    for file in skill.files:
        place = skill.root / file.path
        executable = bool(place.lstat().st_mode & stat.S_IXUSR)
        files[file.path] = FileSide(file.size, file.sha256, executable, place.read_bytes)
    return Side(skill, files)


TABLE = (
    Method(
        name="catalogue.diff",
        doc="What changed between two versions of a skill: what it asks for first, then how it runs, then its files.",
        params=obj(
            {
                "name": SKILL_NAME,
                "from": {**VERSION, "description": "the exact version to compare with"},
                "to": {**VERSION, "description": "the exact version that is looked at; the latest when left out"},
            },
            "name",
            "from",
        ),
        result=answer(
            {
                "name": STRING,
                "from": described(OBJECT, "version and digest"),
                "to": described(OBJECT, "version and digest"),
                "same": described(BOOLEAN, "nothing changed but, perhaps, the version"),
                "widens": described(BOOLEAN, "it asks for something that the other version did not ask for"),
                "needs": list_of(OBJECT, "need, name, change, before, after, widens; what widens comes first"),
                "facts": list_of(OBJECT, "field, before, after: kind, entrypoint, description, schemas and the like"),
                "files": list_of(
                    OBJECT,
                    "path, change, old_size, new_size, old_executable, new_executable, diff (unified, bounded), cut,"
                    " and the reason when there is no diff",
                ),
            },
            *("name", "from", "to", "same", "widens", "needs", "facts", "files"),
        ),
        errors=(SkillNotFound,),
        handler=compare,
        scope=Scope.DISCOVER,
        surface="operator",
    ),
)
