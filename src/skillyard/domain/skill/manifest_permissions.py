"""``[permissions]`` of skill.toml: which hosts a skill wants to reach and which secrets it reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from skillyard.domain.errors import InvalidInput
from skillyard.domain.network.policy import NONE_WORD, OPEN_WORD, is_open
from skillyard.domain.network.rule import MAX_RULES, parse_rule
from skillyard.domain.secret.secret import Delivery, bound_hosts
from skillyard.domain.skill.manifest_report import Path, Report
from skillyard.domain.skill.skill import SecretNeed

_KEYS = frozenset({"network", "secrets"})
_ALL = "asks for every host: the operator has to consent to that"
_SECRET_KEYS = frozenset({"name", "optional", "delivery", "hosts"})
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED = re.compile(r"PATH|HOME|TMPDIR|IFS|ENV|BASH_ENV|GCONV_PATH|LOCPATH|(?:LD|PYTHON|MALLOC|GLIBC)[A-Z0-9_]*")


def read_permissions(report: Report, data: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[SecretNeed, ...]]:
    """The declared network rules and secrets."""
    table = report.table(data, ("permissions",))
    report.unknown_keys(table, ("permissions",), _KEYS)
    return _network(report, table), _secrets(report, table)


def _network(report: Report, table: Mapping[str, Any]) -> tuple[str, ...]:
    """The rules as they are written: a list, or one of the words ``none`` and ``open``."""
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
    if _ENV_NAME.fullmatch(name) is None:
        report.error(path, "secret-name", "must be an environment variable's name, such as 'API_KEY'", name)
    elif _RESERVED.fullmatch(name):
        report.error(path, "secret-name", f"'{name}' steers the interpreter or the loader and cannot be a secret")
    else:
        return True
    return False
