"""What else a version says of itself and decides how it runs and how models see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from skillyard.domain.skill.skill import Skill

MAX_FACT = 2000
"""Characters of a value that are shown."""


@dataclass(frozen=True, slots=True)
class FactChange:
    """``before`` and ``after`` are empty where nothing is said."""

    field: str
    before: str
    after: str


def diff_facts(old: Skill, new: Skill) -> list[FactChange]:
    before, after = dict(_facts(old)), dict(_facts(new))
    changed = [FactChange(field, before[field], after[field]) for field in before if before[field] != after[field]]
    schemas = [
        FactChange(field, "one" if was else "none", "another" if was and now else "one" if now else "none")
        for field, was, now in (
            ("inputs schema", old.inputs_schema, new.inputs_schema),
            ("outputs schema", old.outputs_schema, new.outputs_schema),
        )
        if was != now
    ]
    return changed + schemas


def _facts(skill: Skill) -> Iterator[tuple[str, str]]:
    runtime = skill.runtime
    yield "kind", skill.kind.value
    yield "format", skill.format.value
    yield "language", runtime.language if runtime else ""
    yield "entrypoint", f"{runtime.entrypoint}:{runtime.export}" if runtime else ""
    yield "environment", runtime.environment if runtime else ""
    yield "description", skill.description[:MAX_FACT]
    yield "short description", skill.short_description[:MAX_FACT]
    yield "tags", ", ".join(skill.tags)[:MAX_FACT]
