"""skill.toml: the rules of skills-protocol §8 over an already parsed document.

Nothing here reads a file: that an entrypoint exists and exports what it says, and that a schema is valid JSON
Schema, is for who holds the files.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from skillyard.domain.skill.manifest_name import check_name, check_namespace
from skillyard.domain.skill.manifest_needs import read_dependencies, read_requires
from skillyard.domain.skill.manifest_permissions import read_permissions
from skillyard.domain.skill.manifest_report import Problem, Report
from skillyard.domain.skill.manifest_runtime import check_relative, read_limits, read_runtime
from skillyard.domain.skill.semver import is_version
from skillyard.domain.skill.skill import Needs, RuntimeSpec, SkillKind

KNOWN = frozenset(
    {
        *("name", "version", "description", "kind", "namespace", "runtime", "permissions", "limits"),
        *("inputs", "outputs", "inputs_schema", "outputs_schema", "dependencies", "requires"),
        *("tags", "authors", "license", "homepage"),
    }
)

MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class SchemaSource:
    """Where a schema stands: in the manifest itself (``inline``), or in a file of the skill (``file``)."""

    inline: Mapping[str, Any] | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a valid skill.toml says. ``data`` is the whole of it as JSON values (dates as ISO text)."""

    name: str
    version: str
    description: str
    kind: SkillKind
    data: Mapping[str, Any]
    runtime: RuntimeSpec | None = None
    needs: Needs = field(default_factory=Needs)
    tags: tuple[str, ...] = ()
    inputs: SchemaSource = SchemaSource()
    outputs: SchemaSource = SchemaSource()


def check_manifest(document: Mapping[str, Any], *, lenient: bool = False) -> tuple[Manifest | None, list[Problem]]:
    """The manifest, None when an error is among the problems."""
    report = Report(lenient)
    if _too_deep(document):
        report.error((), "depth", f"must not be nested deeper than {MAX_DEPTH} levels")
        return None, report.problems
    data = {key: _json(report, (key,), value) for key, value in document.items()}
    _unknown(report, data)
    manifest = _read(report, data)
    return (None if report.failed else manifest), report.problems


def _read(report: Report, data: Mapping[str, Any]) -> Manifest | None:
    kind = _kind(report, data)
    name = report.text(data, ("name",), required=True)
    version = report.text(data, ("version",), required=True)
    description = report.text(data, ("description",), required=True)
    _check_identity(report, data, name, version, description, kind)
    runtime, needs = _runtime(report, data, kind), _needs(report, data)
    tags, inputs, outputs = _tags(report, data), _schema(report, data, "inputs"), _schema(report, data, "outputs")
    _check_credits(report, data)
    if name is None or version is None or description is None or kind is None:
        return None
    return Manifest(name, version, description.strip(), kind, data, runtime, needs, tags, inputs, outputs)


def _check_identity(
    report: Report,
    data: Mapping[str, Any],
    name: str | None,
    version: str | None,
    description: str | None,
    kind: SkillKind | None,
) -> None:
    if name is not None:
        check_name(report, ("name",), name, importable=kind is SkillKind.ACTION)
        namespace = report.text(data, ("namespace",))
        if namespace is not None:
            check_namespace(report, ("namespace",), namespace, name)
    if version is not None and not is_version(version):
        report.error(("version",), "semver", "must be a semantic version such as '1.4.0'", version)
    if description is not None and len(description.strip().splitlines()) > 1:
        report.breach(("description",), "one-line", "must be one line", description)


def _kind(report: Report, data: Mapping[str, Any]) -> SkillKind | None:
    kind = report.text(data, ("kind",), required=True)
    if kind is None:
        return None
    if kind not in set(SkillKind):
        report.error(("kind",), "kind", "must be 'action' or 'instruction'", kind)
        return None
    return SkillKind(kind)


def _runtime(report: Report, data: Mapping[str, Any], kind: SkillKind | None) -> RuntimeSpec | None:
    if kind is SkillKind.ACTION:
        return read_runtime(report, data)
    if kind is SkillKind.INSTRUCTION and "runtime" in data:
        report.error(("runtime",), "runtime", "an instruction skill is never executed and has no [runtime]")
    return None


def _needs(report: Report, data: Mapping[str, Any]) -> Needs:
    network, secrets = read_permissions(report, data)
    return Needs(
        network=network,
        secrets=secrets,
        dependencies=read_dependencies(report, data),
        requires=read_requires(report, data),
        limits=read_limits(report, data),
    )


def _tags(report: Report, data: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tag.strip() for tag in report.texts(data, ("tags",))))


def _schema(report: Report, data: Mapping[str, Any], side: str) -> SchemaSource:
    """``[inputs]``, or ``inputs_schema = "resources/inputs.json"``; not both."""
    key = f"{side}_schema"
    file = report.text(data, (key,))
    inline = report.table(data, (side,)) if side in data else None
    if file is not None and inline is not None:
        report.error((key,), "schema-twice", f"stands beside the table [{side}]; use one of them")
    if file is not None and not check_relative(report, (key,), file):
        return SchemaSource()
    return SchemaSource(inline, file)


def _check_credits(report: Report, data: Mapping[str, Any]) -> None:
    report.texts(data, ("authors",))
    report.text(data, ("license",))
    homepage = report.text(data, ("homepage",))
    if homepage is not None and not homepage.startswith(("https://", "http://")):
        report.breach(("homepage",), "homepage", "must be a web address (https://…)", homepage)


def _unknown(report: Report, data: Mapping[str, Any]) -> None:
    """Unknown tables and keys have no effect, and are said so; ``x-*`` and ``[tool.*]`` are free."""
    report.unknown_keys(data, (), KNOWN | {"tool"})


def _json(report: Report, path: tuple[str | int, ...], value: Any) -> Any:
    """TOML's values as JSON's: dates as ISO text; infinities and not-a-number have no form in JSON."""
    if isinstance(value, Mapping):
        return {key: _json(report, (*path, key), item) for key, item in value.items()}
    if isinstance(value, list):
        return [_json(report, (*path, index), item) for index, item in enumerate(value)]
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        report.error(path, "number", "must be a finite number")
        return None
    return value


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for node in level for item in _children(node)]
        if not level:
            return False
    return True


def _children(node: Any) -> list[Any]:
    if isinstance(node, Mapping):
        return list(node.values())
    return list(node) if isinstance(node, list) else []
