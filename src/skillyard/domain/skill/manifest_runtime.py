"""``[runtime]`` and ``[limits]`` of skill.toml."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from typing import Any

from skillyard.domain.errors import InvalidInput
from skillyard.domain.skill.manifest_report import Path, Report
from skillyard.domain.skill.skill import RuntimeSpec
from skillyard.domain.work.limits import LimitFamily, Limits

_KEYS = frozenset({"language", "entrypoint", "export", "environment", "preload"})
_ENVIRONMENT = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_HUGE = 2**53
_ASKED = LimitFamily(maxima=Limits(timeout_ms=_HUGE, memory_mb=_HUGE, cpus=float(_HUGE), pids=_HUGE, disk_mb=_HUGE))
"""Minima only: what a skill asks for is capped by the operator's policy when it runs, not by the validator."""


def read_runtime(report: Report, data: Mapping[str, Any]) -> RuntimeSpec | None:
    """The ``[runtime]`` table of an action skill, None when it cannot be used."""
    if "runtime" not in data:
        report.error(("runtime",), "required", "an action skill needs the table [runtime]")
        return None
    table = report.table(data, ("runtime",))
    if not isinstance(data["runtime"], Mapping):
        return None
    report.unknown_keys(table, ("runtime",), _KEYS)
    language = report.text(table, ("runtime", "language"), required=True)
    entrypoint = report.text(table, ("runtime", "entrypoint"), required=True)
    export = report.text(table, ("runtime", "export"), required=True)
    environment = report.text(table, ("runtime", "environment")) or "base"
    _check_values(report, language, entrypoint, export, environment)
    if language is None or entrypoint is None or export is None:
        return None
    preload = table.get("preload", True)
    if not isinstance(preload, bool):
        report.error(("runtime", "preload"), "type", "must be true or false", preload)
        return None
    return RuntimeSpec(language, entrypoint, export, environment, preload)


def _check_values(
    report: Report, language: str | None, entrypoint: str | None, export: str | None, environment: str
) -> None:
    if language not in (None, "python"):
        report.error(("runtime", "language"), "language", "must be 'python'", language)
    if entrypoint is not None and check_relative(report, ("runtime", "entrypoint"), entrypoint):
        _check_module(report, entrypoint)
    if export is not None and (not export.isidentifier() or keyword.iskeyword(export)):
        report.error(("runtime", "export"), "export", "must be the name of a function", export)
    if _ENVIRONMENT.fullmatch(environment) is None:
        rule = "must be lowercase letters, digits, dots, hyphens and underscores, at most 64"
        report.error(("runtime", "environment"), "environment", rule, environment)


def _check_module(report: Report, entrypoint: str) -> None:
    if not entrypoint.endswith(".py"):
        report.error(("runtime", "entrypoint"), "entrypoint-file", "must be a Python file (.py)", entrypoint)


def check_relative(report: Report, path: Path, value: str) -> bool:
    """Whether ``value`` is a plain relative path that cannot leave the skill's root; reported when not."""
    parts = value.split("/")
    if "\0" in value or "\\" in value or not value.isprintable():
        rule = "must not hold backslashes or control characters"
    elif value.startswith("/") or ".." in parts:
        rule = "must stay inside the skill: relative, without '..'"
    elif "" in parts or "." in parts:
        rule = "must be a plain path such as 'code/main.py', without '.' or empty parts"
    else:
        return True
    report.error(path, "path", rule, value)
    return False


def read_limits(report: Report, data: Mapping[str, Any]) -> dict[str, int | float]:
    """The valid entries of ``[limits]``."""
    asked: dict[str, int | float] = {}
    for name, value in report.table(data, ("limits",)).items():
        if name.startswith("x-"):
            continue
        try:
            asked[name] = getattr(_ASKED.resolve({name: value}, where="limits"), name)
        except InvalidInput as error:
            report.error(("limits", name), "limit", error.rule)
    return asked
