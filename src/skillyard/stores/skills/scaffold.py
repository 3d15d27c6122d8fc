"""A new skill that passes strict validation, with examples that pass: what ``skill new`` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.skill.manifest_agent import FrontMatter, check_agent_skill
from skillyard.domain.skill.manifest_name import GUIDE, check_name
from skillyard.domain.skill.manifest_report import Problem, Report
from skillyard.domain.skill.skill import SkillFormat, SkillKind
from skillyard.stores.skills import scaffold_texts as texts

Kind = SkillKind | Literal["action", "instruction"]
Format = SkillFormat | Literal["skills-protocol", "agent-skills"]


def new_skill(path: Path, name: str, kind: Kind | None = None, format: Format = SkillFormat.PROTOCOL) -> list[Path]:
    """Write a skill into the directory ``path``, which must be absent or empty; the files written.

    ``kind`` is an action when left out; an Agent Skill is an instruction skill. Raises InvalidInput for a name, kind or
    format that breaks a rule, and for a directory that holds something.
    """
    form = _checked_format(format)
    agent = form is SkillFormat.AGENT_SKILLS
    checked = _checked_kind(kind or ("instruction" if agent else "action"))
    if agent and checked is SkillKind.ACTION:
        raise InvalidInput("kind", "must be 'instruction' for an Agent Skill, which is text with scripts")
    (_check_agent_name if agent else _check_name)(name, checked)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidInput("path", "must be a directory that is absent or empty")
    return _write(path, _agent_files(name) if agent else _files(name, checked))


def _write(path: Path, files: Mapping[str, str]) -> list[Path]:
    for relative, text in files.items():
        target = path / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        if text.startswith("#!"):
            target.chmod(target.stat().st_mode | 0o111)
    return [path / relative for relative in files]


def _checked_kind(kind: str) -> SkillKind:
    if kind not in set(SkillKind):
        raise InvalidInput("kind", "must be 'action' or 'instruction'", shown(kind))
    return SkillKind(kind)


def _checked_format(format: str) -> SkillFormat:
    if format not in set(SkillFormat):
        raise InvalidInput("format", "must be 'skills-protocol' or 'agent-skills'", shown(format))
    return SkillFormat(format)


def _check_name(name: str, kind: SkillKind) -> None:
    report = Report()
    check_name(report, ("name",), name, importable=kind is SkillKind.ACTION)
    _refuse(report.problems)
    if name == GUIDE:
        raise InvalidInput("name", f"'{GUIDE}' is built in")


def _check_agent_name(name: str, _kind: SkillKind) -> None:
    front = FrontMatter({"name": name, "description": "x"}, {("name",): name, ("description",): "x"})
    _refuse(check_agent_skill(front, name)[1])


def _refuse(problems: list[Problem]) -> None:
    errors = [problem.message for problem in problems if problem.level == "error"]
    if errors:
        raise InvalidInput("name", errors[0].removeprefix("name: "))


def _files(name: str, kind: SkillKind) -> dict[str, str]:
    title = " ".join(part.capitalize() for part in name.split("."))
    description = f"{title}: say in one line what it does and when to use it."
    manifest = texts.MANIFEST.format(name=json.dumps(name), description=json.dumps(description), kind=kind.value)
    text = texts.SKILL_MD.format(
        identifier=_quoted(name.rpartition(".")[2]),
        description=json.dumps(description),
        title=title,
        quoted_title=json.dumps(title),
    )
    if kind is SkillKind.INSTRUCTION:
        return {"skill.toml": manifest, "SKILL.md": text}
    return {
        "skill.toml": manifest + texts.RUNTIME,
        "SKILL.md": text + texts.USAGE.format(name=json.dumps(name)),
        "code/main.py": texts.MAIN,
        "tests/examples.toml": texts.EXAMPLES,
    }


def _agent_files(name: str) -> dict[str, str]:
    title = name.replace("-", " ").capitalize()
    description = f"{title}: say what it does, and when to use it."
    head = {"identifier": _quoted(name), "description": json.dumps(description), "title": title}
    return {
        "SKILL.md": texts.AGENT_SKILL_MD.format(**head),
        "scripts/count.py": texts.SCRIPT,
        "tests/examples.toml": texts.SCRIPT_EXAMPLES,
        "tests/poem.txt": texts.POEM,
    }


def _quoted(text: str) -> str:
    """A segment such as ``123`` or ``true`` would not be a string without quotes."""
    plain = text.replace("-", "")
    return text if plain.isalpha() and text.lower() not in ("true", "false", "null") else json.dumps(text)
