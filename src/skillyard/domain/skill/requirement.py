"""Requirements of a skill: other skills (skills-protocol §11) and Python packages.

A required skill is ``"name"`` or ``"name >=1.2,<2"``. A package is a PEP 508 requirement as text: ``[dependencies]`` of
skill.toml takes ``python = ["numpy>=2", …]`` and ``numpy = ">=2"`` (``"*"`` for any version), which mean the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.skill.report import Path, Report
from skillyard.domain.skill.semver import Range
from skillyard.values import dataclass

_FORM = re.compile(r"([^\W_](?:[\w.-]*[^\W_])?)\s*(.*)", re.DOTALL)
_PROJECT = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_CLAUSE = r"(?:~=|===?|!=|<=?|>=?) ?[A-Za-z0-9._*+!-]+"
_CLAUSES = rf"{_CLAUSE}(?: ?, ?{_CLAUSE})*"
_REQUIREMENT = re.compile(
    rf"{_PROJECT} ?(?:\[[A-Za-z0-9._, -]*\] ?)?(?:{_CLAUSES}|\({_CLAUSES}\))?(?: ?;(?!.* --)[^\\#$]{{1,500}})?"
)
_HASH = re.compile(r"\s--hash[=\s]\S+")
_COMMENT = re.compile(r"(?:^|\s)#.*$")


@dataclass(frozen=True, slots=True)
class Requirement:
    """Another skill by name, and the range that its version must lie in."""

    name: str
    range: Range = field(default_factory=Range)

    @classmethod
    def parse(cls, text: str, field: str = "requires") -> Requirement:
        """Raises InvalidInput naming ``field``."""
        match = _FORM.fullmatch(text.strip()) if len(text) <= 512 else None
        if match is None or ".." in match[1]:
            raise InvalidInput(field, "must be 'name' or 'name >=1.2,<2'", shown(text))
        return cls(match[1], Range.parse(match[2], field))

    def admits(self, version: str) -> bool:
        return self.range.admits(version)

    def choose(self, versions: Iterable[str]) -> str | None:
        """Returns the newest fitting version; None when there is none."""
        return self.range.choose(versions)

    def __str__(self) -> str:
        return f"{self.name} {self.range}".strip()


def read_dependencies(report: Report, data: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns every requirement of ``[dependencies]``, as text."""
    table = report.table(data, ("dependencies",))
    found = list(_checked(report, ("dependencies", "python"), table)) if "python" in table else []
    for name, value in table.items():
        if name == "python" or name.startswith("x-"):
            continue
        if isinstance(value, str):
            requirement = name if value.strip() in ("*", "") else f"{name}{value.strip()}"
            found += _one(report, ("dependencies", name), requirement)
        else:
            rule = "must be a version range such as \">=1.2,<2\"; lists of requirements go under 'python'"
            report.error(("dependencies", name), "dependency", rule, value)
    return tuple(found)


def _checked(report: Report, path: Path, table: Mapping[str, Any]) -> Iterable[str]:
    for index, text in enumerate(report.texts(table, path)):
        yield from _one(report, (*path, index), text)


def _one(report: Report, path: Path, text: str) -> list[str]:
    if is_requirement(text):
        return [text.strip()]
    report.error(path, "dependency", "must be a requirement such as 'numpy>=2,<3'; no URLs, paths or options", text)
    return []


def is_requirement(text: str) -> bool:
    """Returns whether it is a name with extras, version clauses and a marker.

    URLs, paths and options are not accepted, nor continuations, expansions and comments of a requirements file.
    """
    return len(text) <= 1000 and _REQUIREMENT.fullmatch(" ".join(text.split())) is not None


def requirement_lines(text: str) -> Iterable[tuple[int, str]]:
    """Yields the requirements of a requirements.txt with their line numbers.

    Comments, blank lines, continuations and ``--hash`` options are removed; all other text stays as it is.
    """
    pending, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        start = start or number
        if line.endswith("\\"):
            pending += line[:-1] + " "
            continue
        plain = _HASH.sub("", _COMMENT.sub("", pending + line)).strip()
        if plain:
            yield start, plain
        pending, start = "", 0
    if plain := _HASH.sub("", _COMMENT.sub("", pending)).strip():
        yield start, plain


def read_requires(report: Report, data: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the required skills, in their plain form."""
    needs = []
    for index, text in enumerate(report.texts(data, ("requires",))):
        try:
            needs.append(str(Requirement.parse(text)))
        except InvalidInput as error:
            report.error(("requires", index), "requires", error.rule, text)
    names = [need.split(" ")[0] for need in needs]
    for name in sorted({name for name in names if names.count(name) > 1}):
        report.error(("requires",), "requires-duplicate", f"names '{name}' more than once")
    return tuple(needs)
