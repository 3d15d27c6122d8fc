"""``catalogue.review`` and ``catalogue.diff``: facts to know before one trusts a version."""

from __future__ import annotations

import asyncio
import stat
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from skillyard.domain.errors import SkillNotFound, StoreFault
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.skill import Skill
from skillyard.engine.method import (
    BOOLEAN,
    INTEGER,
    OBJECT,
    SKILL_NAME,
    STRING,
    VERSION,
    Method,
    Schema,
    answer,
    described,
    list_of,
    obj,
)
from skillyard.engine.shapes import FINDING, STRINGS, shape, table_of
from skillyard.engine.skills.service import SkillService
from skillyard.ports.jailed import PythonReader
from skillyard.threads import to_its_end

if TYPE_CHECKING:  # a server that nobody asks starts without them
    from skillyard.domain.diff import Side, SkillDiff
    from skillyard.domain.review.bundle import Review
    from skillyard.domain.review.file import File

KEPT = 64
"""Reviews that are remembered: a version never changes."""


class Reviews:
    """Reviews, made on a thread, one at a time: each takes time in proportion to its bundle.

    Lives on one event loop."""

    def __init__(self, reader: PythonReader) -> None:
        self._reader = reader
        self._made: OrderedDict[tuple[str, str], Review] = OrderedDict()
        self._turn = asyncio.Lock()

    async def of(self, skill: Skill) -> Review:
        """Raises OSError for a snapshot that cannot be read, ValidatorFault."""
        key = (skill.digest, skill.name)
        async with self._turn:
            if key not in self._made:
                self._made[key] = await self._make(skill)
            self._made.move_to_end(key)
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
            return self._made[key]

    async def _make(self, skill: Skill) -> Review:
        from skillyard.domain.review.bundle import review

        files, sources = await to_its_end(_read_all, skill)
        facts = {path: await self._reader.read_python(source) for path, source in sources.items()}
        return await to_its_end(review, files, skill, facts)


def _read_all(skill: Skill) -> tuple[list[File], Mapping[str, str]]:
    from skillyard.domain.review.bundle import python_sources

    files = [_read(skill, file.path) for file in skill.files]
    return files, python_sources(files)


def _read(skill: Skill, path: str) -> File:
    """Reads a file of a snapshot, whose executable files have mode 0555."""
    from skillyard.domain.review.file import File

    place = skill.root / path
    return File(path, place.read_bytes(), bool(place.stat().st_mode & 0o100))


async def review_skill(inspection: Inspection, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    skill = await inspection.skills.find(principal, params["name"], params.get("version"))
    made = await inspection.reviews.of(skill)
    return {
        "name": skill.name,
        "version": skill.version,
        "digest": skill.digest,
        "source": skill.source.value,
        **made.as_dict(),
        "validation": [asdict(finding) for finding in skill.findings],
    }


class Diffs:
    """Differences, made on a thread, one at a time: each may take a processor for a second.

    Lives on one event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def of(self, old: Skill, new: Skill) -> SkillDiff:
        """Raises StoreFault for a snapshot that cannot be read."""
        async with self._turn:
            return await to_its_end(_compared, old, new)


class Inspection:
    """The service of both methods."""

    def __init__(self, skills: SkillService, reader: PythonReader) -> None:
        self.skills = skills
        self.reviews = Reviews(reader)
        self.diffs = Diffs()


async def compare(inspection: Inspection, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    old = await inspection.skills.find(principal, params["name"], params["from"])
    new = await inspection.skills.find(principal, params["name"], params.get("to"))
    found = await inspection.diffs.of(old, new)
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
    from skillyard.domain.diff import diff_skills

    try:
        return diff_skills(_diff_side(old), _diff_side(new))
    except OSError as error:
        raise StoreFault(f"a version's snapshot cannot be read: {error.strerror}") from error


def _diff_side(skill: Skill) -> Side:
    """Returns the files of a snapshot, whose executable files have mode 0555."""
    from skillyard.domain.diff import FileSide, Side

    files = {}
    for file in skill.files:
        place = skill.root / file.path
        executable = bool(place.lstat().st_mode & stat.S_IXUSR)
        files[file.path] = FileSide(file.size, file.sha256, executable, place.read_bytes)
    return Side(skill, files)


_SIDE = answer({"version": STRING, "digest": STRING})
_SIZE: Schema = {"type": ["integer", "null"]}
_EXECUTABLE: Schema = {"type": ["boolean", "null"]}
_FILE_CHANGE = shape(
    "FileChange",
    "a file that differs",
    {
        "path": STRING,
        "change": STRING,
        "old_size": _SIZE,
        "new_size": _SIZE,
        "old_executable": _EXECUTABLE,
        "new_executable": _EXECUTABLE,
        "diff": described(STRING, "unified, bounded"),
        "cut": BOOLEAN,
        "reason": described(STRING, "why there is no diff, or nothing"),
    },
)

TABLE = (
    Method(
        name="catalogue.review",
        doc="Facts to know before one trusts a skill, from its files alone; nothing of it is executed.",
        params=obj({"name": SKILL_NAME, "version": VERSION}, "name"),
        example={"name": "acme.words.say", "version": "1.0.0"},
        result=answer(
            {
                "name": STRING,
                "version": STRING,
                "digest": STRING,
                "source": STRING,
                "needs": described(OBJECT, "what it declares: network, secrets, dependencies, requires, limits"),
                "imports": table_of(STRINGS, "of its Python code: standard, declared, own, skills, undeclared"),
                "hosts": described(STRINGS, "that its URLs name"),
                "counts": table_of(INTEGER, "findings by level: danger, warning, note"),
                "findings": list_of(FINDING, "the gravest first"),
                "validation": list_of(FINDING, "of validation"),
            }
        ),
        errors=(SkillNotFound,),
        handler=review_skill,
        service=Inspection,
        scope=Scope.DISCOVER,
        repeatable=True,
    ),
    Method(
        name="catalogue.diff",
        doc="The changes between two versions of a skill: its needs first, then how it runs, then its files.",
        params=obj(
            {
                "name": SKILL_NAME,
                "from": {**VERSION, "description": "the exact version to compare with"},
                "to": {**VERSION, "description": "the exact version that is looked at; the latest when left out"},
            },
            "name",
            "from",
        ),
        example={"name": "acme.words.say", "from": "1.0.0", "to": "1.1.0"},
        result=answer(
            {
                "name": STRING,
                "from": _SIDE,
                "to": _SIDE,
                "same": described(BOOLEAN, "nothing changed but, perhaps, the version"),
                "widens": described(BOOLEAN, "it asks for something that the other version did not ask for"),
                "needs": list_of(
                    answer({**dict.fromkeys(("need", "name", "change", "before", "after"), STRING), "widens": BOOLEAN}),
                    "what widens comes first",
                ),
                "facts": list_of(
                    answer({"field": STRING, "before": STRING, "after": STRING}),
                    "kind, entrypoint, description, schemas and the like",
                ),
                "files": list_of(_FILE_CHANGE, "by path"),
            }
        ),
        errors=(SkillNotFound,),
        handler=compare,
        service=Inspection,
        scope=Scope.DISCOVER,
        repeatable=True,
    ),
)
