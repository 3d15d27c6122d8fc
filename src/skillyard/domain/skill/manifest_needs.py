"""``[dependencies]`` and ``requires`` of skill.toml, and the lines of ``code/requirements.txt``.

A dependency is a PEP 508 requirement as text. ``[dependencies]`` takes ``python = ["numpy>=2", …]`` and
``numpy = ">=2"`` (``"*"`` for any version); both mean the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from skillyard.domain.errors import InvalidInput
from skillyard.domain.skill.manifest_report import Path, Report
from skillyard.domain.skill.requirement import Requirement

_PROJECT = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_CLAUSE = r"(?:~=|===?|!=|<=?|>=?) ?[A-Za-z0-9._*+!-]+"
_CLAUSES = rf"{_CLAUSE}(?: ?, ?{_CLAUSE})*"
_REQUIREMENT = re.compile(
    rf"{_PROJECT} ?(?:\[[A-Za-z0-9._, -]*\] ?)?(?:{_CLAUSES}|\({_CLAUSES}\))?(?: ?;(?!.* --)[^\\#$]{{1,500}})?"
)
_HASH = re.compile(r"\s--hash[=\s]\S+")
_COMMENT = re.compile(r"(?:^|\s)#.*$")


def read_dependencies(report: Report, data: Mapping[str, Any]) -> tuple[str, ...]:
    """Every requirement of ``[dependencies]``, as text."""
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
    """A name with extras, version clauses and a marker; direct URLs, paths and options are not accepted, and nothing
    that a requirements file continues, expands or leaves out."""
    return len(text) <= 1000 and _REQUIREMENT.fullmatch(" ".join(text.split())) is not None


def requirement_lines(text: str) -> Iterable[tuple[int, str]]:
    """The requirements of a requirements.txt with their line numbers: comments, blank lines, continuations
    and ``--hash`` options are taken away; whatever else stands there is given as it is."""
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
    """Other skills, in their plain form."""
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
