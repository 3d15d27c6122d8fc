"""What Vault's answers mean. The other side may be anything: every shape is checked, and no word of it is repeated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from skillyard.domain.errors import StoreFault

MOST_BYTES = 2 * 1024 * 1024
"""Vault itself takes requests of at most 32 MiB, and its storage entries of 1 MiB (its page "Limits and maximums")."""

_STATUSES = {
    400: "takes the request for wrong: check mount, path and namespace",
    403: "refuses the token: it may have expired, or its policy lacks 'read' here",
    412: "has not caught up with its own storage; try again",
    429: "has too many requests at once",
    472: "is a standby of disaster recovery, which answers nothing",
    473: "is a performance standby that cannot answer this",
    503: "is sealed or in maintenance",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """``version`` is what KV version 2 counts."""

    fields: Mapping[str, object] = field(repr=False)
    version: int | None = None


def understand(status: int, body: bytes, kv: int, where: str) -> Answer | None:
    """None when there is surely no such secret, or its version was deleted. Raises StoreFault beginning with
    ``where``."""
    if status == 404:
        _check_really_missing(_object(body, where), where)
        return None
    if status != 200:
        raise StoreFault(f"{where} {_meaning(status)}")
    data = _object(body, where).get("data")
    if kv == 1 and isinstance(data, dict):
        return Answer(data)
    if kv == 2 and isinstance(data, dict) and isinstance(data.get("metadata"), dict):
        version, fields = data["metadata"].get("version"), data.get("data")
        if isinstance(fields, dict) and type(version) is int and version > 0:
            return Answer(fields, version)
    raise StoreFault(f"{where} answers with something that is no secret of KV version {kv}")


def _check_really_missing(answer: Mapping[str, Any], where: str) -> None:
    """A path that is not there has empty errors, or the metadata of a deleted version. A mount that is not there has an
    error, and one of the other KV version a warning."""
    if answer.get("errors"):
        raise StoreFault(f"{where} knows no such mount")
    if answer.get("warnings"):
        raise StoreFault(f"{where} is of the other KV version: see secrets.vault.kv")


def _object(body: bytes, where: str) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise StoreFault(f"{where} answers with something that is not a JSON object")
    return answer


def _meaning(status: int) -> str:
    if status in _STATUSES:
        return _STATUSES[status]
    if 300 <= status < 400:
        return "sends us elsewhere; give the address of the active node or of the load balancer"
    return f"answers with status {status}"
