"""The files of ``skill new``: a skill that passes strict validation, with its examples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Literal

from skillyard.bundled import NEW
from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.skill.agent_skill import FrontMatter, check_agent_skill
from skillyard.domain.skill.name import GUIDE, check_name
from skillyard.domain.skill.report import Problem, Report
from skillyard.domain.skill.skill import SkillFormat, SkillKind

_FILES = {
    "action": ("skill.toml", "SKILL.md", "code/main.py", "tests/examples.toml"),
    "instruction": ("skill.toml", "SKILL.md"),
    "agent": ("SKILL.md", "scripts/count.py", "tests/examples.toml", "tests/poem.txt"),
}
"""The templates of each sort, in directories of ``bundled/new/``."""

Kind = SkillKind | Literal["action", "instruction"]
Format = SkillFormat | Literal["skills-protocol", "agent-skills"]


def new_skill(path: Path, name: str, kind: Kind | None = None, format: Format = SkillFormat.PROTOCOL) -> list[Path]:
    """Writes a skill into the directory ``path``, which must be absent or empty. Returns the files.

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
    return _write(path, _files(name, "agent" if agent else checked.value))


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


def _files(name: str, sort: str) -> dict[str, str]:
    agent = sort == "agent"
    title = name.replace("-", " ").capitalize() if agent else " ".join(map(str.capitalize, name.split(".")))
    advice = "what it does, and when to use it" if agent else "in one line what it does and when to use it"
    values = {
        "name": json.dumps(name),
        "identifier": _quoted(name.rpartition(".")[2]),
        "title": title,
        "quoted_title": json.dumps(title),
        "description": json.dumps(f"{title}: say {advice}."),
    }
    files = {path: (NEW / sort / path).read_text(encoding="utf-8") for path in _FILES[sort]}
    return {path: Template(text).substitute(values) for path, text in files.items()}


def _quoted(text: str) -> str:
    """Returns a segment as YAML; one such as ``123`` or ``true`` is not a string without quotes."""
    plain = text.replace("-", "")
    return text if plain.isalpha() and text.lower() not in ("true", "false", "null") else json.dumps(text)
