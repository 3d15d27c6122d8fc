"""``[permissions]`` of skill.toml: which hosts a skill wants to reach and which secrets it reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from skillyard.domain.manifest_report import Path, Report
from skillyard.domain.skill import SecretNeed

_KEYS = frozenset({"network", "secrets"})
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(\*\.)?({_LABEL}(?:\.{_LABEL})*)(?::([0-9]{{1,5}}))?")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED = re.compile(r"PATH|HOME|TMPDIR|IFS|ENV|BASH_ENV|GCONV_PATH|LOCPATH|(?:LD|PYTHON|MALLOC|GLIBC)[A-Z0-9_]*")


def read_permissions(report: Report, data: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[SecretNeed, ...]]:
    """The declared host patterns and secrets."""
    table = report.table(data, ("permissions",))
    report.unknown_keys(table, ("permissions",), _KEYS)
    hosts = report.texts(table, ("permissions", "network"))
    for index, host in enumerate(hosts):
        _check_host(report, ("permissions", "network", index), host)
    return hosts, _secrets(report, table)


def _check_host(report: Report, path: Path, pattern: str) -> None:
    """``api.x.com``, ``*.x.com``, either with ``:port``, or ``*`` alone (skills-protocol §8)."""
    if pattern == "*":
        report.warn(path, "network-open", "asks for every host: the operator has to consent to that")
        return
    match = _HOST.fullmatch(pattern) if len(pattern) <= 260 else None
    if match is None:
        hint = "without a scheme or path" if "/" in pattern else "with an optional :port"
        report.error(path, "network-host", f"must be 'host.name', '*.host.name' or '*', {hint}", pattern)
        return
    wildcard, host, port = match.groups()
    if wildcard and "." not in host:
        report.error(path, "network-host", "a wildcard needs a domain of two labels or more", pattern)
    if port and not 1 <= int(port) <= 65535:
        report.error(path, "network-port", "must be a port from 1 to 65535", pattern)


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
    """``"NAME"``, or ``{name = "NAME", optional = true}`` (skills-protocol §10, row 5)."""
    entry = {"name": item} if isinstance(item, str) else item
    if not isinstance(entry, Mapping):
        report.error(path, "type", "must be a name, or a table with 'name' and 'optional'", item)
        return None
    report.unknown_keys(entry, path, frozenset({"name", "optional"}))
    name = report.text(entry, (*path, "name"), required=True)
    optional = entry.get("optional", False)
    if not isinstance(optional, bool):
        report.error((*path, "optional"), "type", "must be true or false", optional)
    if name is None or not _check_secret_name(report, path, name):
        return None
    return SecretNeed(name, optional is True)


def _check_secret_name(report: Report, path: Path, name: str) -> bool:
    if _ENV_NAME.fullmatch(name) is None:
        report.error(path, "secret-name", "must be an environment variable's name, such as 'API_KEY'", name)
    elif _RESERVED.fullmatch(name):
        report.error(path, "secret-name", f"'{name}' steers the interpreter or the loader and cannot be a secret")
    else:
        return True
    return False
