"""Frames that programs of the sandbox twin write, and skills made of values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skillyard.domain.errors import SkillNotFound
from skillyard.domain.skill.skill import (
    Finding,
    Needs,
    RuntimeSpec,
    Skill,
    SkillFile,
    SkillFormat,
    SkillKind,
    SkillLine,
    SkillSource,
)
from skillyard.testing.twin_sandbox import TwinProcess


def frame(kind: bytes, payload: bytes) -> bytes:
    return kind + len(payload).to_bytes(4, "big") + payload


def js(value: Any) -> bytes:
    return json.dumps(value).encode()


def result(value: Any) -> bytes:
    return frame(b"R", js(value))


def raises(type_: str, message: str, traceback: str = "", **more: Any) -> bytes:
    return frame(b"X", js({"type": type_, "message": message, "traceback": traceback, **more}))


def blob(n: int, kind: str, *pieces: bytes, size: int | None = None) -> bytes:
    out = frame(b"B", js({"n": n, "kind": kind}))
    for piece in pieces:
        out += frame(b"D", n.to_bytes(4, "big") + piece)
    total = sum(map(len, pieces)) if size is None else size
    return out + frame(b"E", js({"n": n, "size": total}))


async def succeed(process: TwinProcess) -> None:
    """Returns a result, as code that works does."""
    process.write(result({"ok": True}))


class FakeSkills:
    """Skills by name; the last version added of a name is the latest."""

    def __init__(self, *skills: Skill) -> None:
        self.skills: dict[str, list[Skill]] = {}
        self.changes = 0
        for skill in skills:
            self.add(skill)

    def add(self, skill: Skill) -> None:
        self.skills.setdefault(skill.name, []).append(skill)
        self.changes += 1

    async def revision(self) -> str:
        return str(self.changes)

    async def page(self, after: str | None, limit: int, namespace: str | None = None) -> Sequence[SkillLine]:
        below = f"{namespace}."
        names = [n for n in sorted(self.skills) if namespace is None or n == namespace or n.startswith(below)]
        return [self.skills[name][-1].line for name in names if after is None or name > after][:limit]

    async def names(self) -> Sequence[str]:
        return sorted(self.skills)

    async def get(self, name: str, version: str | None = None) -> Skill:
        for skill in reversed(self.skills.get(name, [])):
            if version in (None, skill.version):
                return skill
        raise SkillNotFound("name", f"no skill '{name}'", skill=name)

    async def versions(self, name: str) -> Sequence[str]:
        if name not in self.skills:
            raise SkillNotFound("name", f"no skill '{name}'", skill=name)
        return [skill.version for skill in reversed(self.skills[name])]

    async def not_published(self, name: str) -> frozenset[str]:
        found = self.skills.get(name, [])
        return frozenset(skill.version for skill in found if skill.source is not SkillSource.PUBLISHED)

    async def pinned(self, _name: str) -> str | None:
        return None

    async def refresh(self, _name: str) -> None:
        self.changes += 1

    async def problems(self) -> Sequence[Finding]:
        return []


def a_skill(
    name: str,
    root: Path = Path(__file__).parent,
    *,
    version: str = "1.0.0",
    kind: SkillKind = SkillKind.ACTION,
    needs: Needs | None = None,
    environment: str = "base",
    language: str = "python",
    body: str = "# A skill\n",
    files: tuple[SkillFile, ...] = (),
    inputs: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | None = None,
    format: SkillFormat = SkillFormat.PROTOCOL,
    source: SkillSource = SkillSource.DIRECTORY,
) -> Skill:
    action = kind is SkillKind.ACTION
    return Skill(
        name=name,
        version=version,
        kind=kind,
        format=format,
        description=f"The skill {name}",
        namespace=name.partition(".")[0],
        root=root,
        digest=f"sha256-of-{name}-{version}",
        manifest={"name": name, "version": version, "kind": kind.value},
        frontmatter={"name": name},
        body=body,
        files=files,
        runtime=RuntimeSpec(language, "code/main.py", "main", environment) if action else None,
        needs=needs or Needs(),
        inputs_schema=inputs,
        outputs_schema=outputs,
        source=source,
    )
