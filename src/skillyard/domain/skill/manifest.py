"""Checks a parsed skill.toml by the rules of skills-protocol §8.

Nothing here reads a file: the validation of bundles checks entrypoints and schemas.
"""

from __future__ import annotations

import datetime as dt
import keyword
import math
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from skillyard.domain.errors import InvalidInput
from skillyard.domain.network.policy import NONE_WORD, OPEN_WORD, is_open
from skillyard.domain.network.rule import MAX_RULES, parse_rule
from skillyard.domain.sandbox.guarantees import GUARANTEES, OWN_KERNEL, PROTECTIONS
from skillyard.domain.sandbox.image import RULE, is_by_digest
from skillyard.domain.secret import Delivery, bound_hosts
from skillyard.domain.skill.name import check_name, check_namespace
from skillyard.domain.skill.report import Path, Problem, Report
from skillyard.domain.skill.requirement import read_dependencies, read_requires
from skillyard.domain.skill.schema import depth
from skillyard.domain.skill.semver import is_version
from skillyard.domain.skill.skill import Needs, RuntimeSpec, SecretNeed, SkillKind
from skillyard.domain.work.limits import LimitFamily, Limits
from skillyard.values import dataclass

KNOWN = frozenset(
    {
        *("name", "version", "description", "kind", "namespace", "runtime", "permissions", "limits"),
        *("inputs", "outputs", "inputs_schema", "outputs_schema", "dependencies", "requires"),
        *("tags", "authors", "license", "homepage"),
    }
)

MAX_DEPTH = 64
_RUNTIME_KEYS = frozenset({"language", "entrypoint", "export", "environment", "preload", "guarantees", "image"})
_ENVIRONMENT = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_HUGE = 2**53
_ASKED = LimitFamily(maxima=Limits(timeout_ms=_HUGE, memory_mb=_HUGE, cpus=float(_HUGE), pids=_HUGE, disk_mb=_HUGE))
"""Minima only: the operator's policy caps the limits of a run, not the validator."""
_PERMISSION_KEYS = frozenset({"network", "secrets", "tools"})
_ALL = "asks for every host: the operator has to consent to that"
_SECRET_KEYS = frozenset({"name", "optional", "delivery", "hosts"})
_TOOL = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}__[A-Za-z0-9._*?-]{1,64}")
_MOST_TOOLS = 64
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED = re.compile(r"PATH|HOME|TMPDIR|IFS|ENV|BASH_ENV|GCONV_PATH|LOCPATH|(?:LD|PYTHON|MALLOC|GLIBC)[A-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class SchemaSource:
    """The place of a schema: in the manifest (``inline``), or in a ``file`` of the skill."""

    inline: Mapping[str, Any] | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A valid skill.toml. ``data`` is the whole of it as JSON values (dates as ISO text)."""

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
    """Returns the manifest, None when a problem is an error, and the problems."""
    report = Report(lenient)
    if depth(document, MAX_DEPTH) > MAX_DEPTH:
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
        return _read_runtime(report, data)
    if kind is SkillKind.INSTRUCTION and "runtime" in data:
        report.error(("runtime",), "runtime", "an instruction skill is never executed and has no [runtime]")
    return None


def _needs(report: Report, data: Mapping[str, Any]) -> Needs:
    network, secrets, tools = _read_permissions(report, data)
    return Needs(
        network=network,
        secrets=secrets,
        dependencies=read_dependencies(report, data),
        requires=read_requires(report, data),
        limits=check_limits(report, ("limits",), data),
        tools=tools,
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
    """Warns of unknown tables and keys; ``x-*`` and ``[tool.*]`` are free."""
    report.unknown_keys(data, (), KNOWN | {"tool"})


def _json(report: Report, path: tuple[str | int, ...], value: Any) -> Any:
    """Returns TOML's values as JSON's, dates as ISO text; reports infinities and not-a-number."""
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


def _read_runtime(report: Report, data: Mapping[str, Any]) -> RuntimeSpec | None:
    """Returns the ``[runtime]`` table of an action skill; None when it cannot be used."""
    if "runtime" not in data:
        report.error(("runtime",), "required", "an action skill needs the table [runtime]")
        return None
    table = report.table(data, ("runtime",))
    if not isinstance(data["runtime"], Mapping):
        return None
    report.unknown_keys(table, ("runtime",), _RUNTIME_KEYS)
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
    image = report.text(table, ("runtime", "image")) or ""
    if image and not is_by_digest(image):
        report.error(("runtime", "image"), "image", RULE, image)
    return RuntimeSpec(language, entrypoint, export, environment, preload, _guarantees(report, table), image)


def _guarantees(report: Report, table: Mapping[str, Any]) -> frozenset[str]:
    path: Path = ("runtime", "guarantees")
    names = frozenset(report.texts(table, path))
    if unknown := sorted(names - {*GUARANTEES, *PROTECTIONS, OWN_KERNEL}):
        known = ", ".join((OWN_KERNEL, *GUARANTEES))
        report.error(path, "guarantee", f"must be names of guarantees or walls, such as {known}", unknown)
    return names


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
    """Returns whether ``value`` is a plain path within the skill; reports another."""
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


def check_limits(report: Report, path: Path, data: Mapping[str, Any], free: str = "x-") -> dict[str, int | float]:
    """Returns the valid entries of the table of limits at ``path[-1]``; reports the others.

    Keys that begin with ``free`` are passed over.
    """
    asked: dict[str, int | float] = {}
    for name, value in report.table(data, path).items():
        if free and name.startswith(free):
            continue
        try:
            asked[name] = getattr(_ASKED.resolve({name: value}, where="limits"), name)
        except InvalidInput as error:
            report.error((*path, name), "limit", error.rule)
    return asked


def _read_permissions(
    report: Report, data: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[SecretNeed, ...], tuple[str, ...]]:
    """Returns the declared network rules, secrets and tools."""
    table = report.table(data, ("permissions",))
    report.unknown_keys(table, ("permissions",), _PERMISSION_KEYS)
    return _network(report, table), _secrets(report, table), _tools(report, table)


def _network(report: Report, table: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the rules as they are written: a list, or one of the words ``none`` and ``open``."""
    path: Path = ("permissions", "network")
    if table.get("network") == NONE_WORD:
        return ()
    if table.get("network") == OPEN_WORD:
        report.warn(path, "network-open", _ALL)
        return ("*",)
    texts = report.texts(table, path)
    if len(texts) > MAX_RULES:
        report.error(path, "network-many", f"must have at most {MAX_RULES} rules", texts)
        return ()
    for index, text in enumerate(texts):
        _check_rule(report, (*path, index), text)
    return texts


def _check_rule(report: Report, path: Path, text: str) -> None:
    """One of the language in :mod:`skillyard.domain.network.rule` (skills-protocol §8)."""
    try:
        rule = parse_rule(text)
    except InvalidInput as error:
        name = "network-port" if error.rule.startswith("ports must be from") else "network-host"
        report.error(path, name, error.rule, text)
        return
    if is_open([rule]):
        report.warn(path, "network-open", _ALL)


def _tools(report: Report, table: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the tools of MCP servers: full names, or patterns of one server's."""
    path: Path = ("permissions", "tools")
    texts = tuple(dict.fromkeys(report.texts(table, path)))
    if len(texts) > _MOST_TOOLS:
        report.error(path, "tools-many", f"must have at most {_MOST_TOOLS} entries", texts)
        return ()
    for index, text in enumerate(texts):
        if _TOOL.fullmatch(text) is None:
            rule = "must be a server's name, two underscores and a tool's name or pattern, such as 'git__git_log'"
            report.error((*path, index), "tool-name", rule, text)
    return texts


def _secrets(report: Report, table: Mapping[str, Any]) -> tuple[SecretNeed, ...]:
    path: Path = ("permissions", "secrets")
    value = table.get("secrets")
    if value is None:
        return ()
    if not isinstance(value, list):
        report.error(path, "type", "must be a list of names, or of tables with 'name' and 'optional'", value)
        return ()
    needs = [need for index, item in enumerate(value) if (need := _secret(report, (*path, index), item))]
    for name in sorted({need.name for need in needs if [n.name for n in needs].count(need.name) > 1}):
        report.error(path, "secret-duplicate", f"names '{name}' more than once")
    return tuple(needs)


def _secret(report: Report, path: Path, item: object) -> SecretNeed | None:
    """``"NAME"``, or a table: ``{name = "NAME", optional = true, delivery = "gate", hosts = ["api.x.com"]}``
    (skills-protocol §10, row 5)."""
    entry = {"name": item} if isinstance(item, str) else item
    if not isinstance(entry, Mapping):
        report.error(path, "type", "must be a name, or a table with 'name' and 'optional'", item)
        return None
    report.unknown_keys(entry, path, _SECRET_KEYS)
    name = report.text(entry, (*path, "name"), required=True)
    optional = entry.get("optional", False)
    if not isinstance(optional, bool):
        report.error((*path, "optional"), "type", "must be true or false", optional)
    delivery, hosts = _delivery(report, path, entry), _bound_hosts(report, path, entry)
    if name is None or not _check_secret_name(report, path, name):
        return None
    return SecretNeed(name, optional is True, delivery, hosts)


def _delivery(report: Report, path: Path, entry: Mapping[str, Any]) -> Delivery:
    value = entry.get("delivery", Delivery.ENV)
    if value in tuple(Delivery):
        return Delivery(value)
    report.error((*path, "delivery"), "secret-delivery", f"must be one of {', '.join(Delivery)}", value)
    return Delivery.GATE  # the narrower of the two


def _bound_hosts(report: Report, path: Path, entry: Mapping[str, Any]) -> tuple[str, ...]:
    hosts = report.texts(entry, (*path, "hosts"))
    try:
        bound_hosts(hosts)
    except InvalidInput as error:
        report.error((*path, "hosts"), "secret-host", error.rule, list(hosts))
    return hosts


def _check_secret_name(report: Report, path: Path, name: str) -> bool:
    if ENV_NAME.fullmatch(name) is None:
        report.error(path, "secret-name", "must be an environment variable's name, such as 'API_KEY'", name)
    elif _RESERVED.fullmatch(name):
        report.error(path, "secret-name", f"'{name}' steers the interpreter or the loader and cannot be a secret")
    else:
        return True
    return False
