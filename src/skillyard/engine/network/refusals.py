"""Adds refused and failed connections to the error of a failed run, as its likely reason.

The text stands behind the message, and behind the summary that people and models see first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from skillyard.domain.network.session import host_and_port
from skillyard.domain.work.record import RunRecord, RunStatus
from skillyard.engine.observer import NetworkUsed
from skillyard.engine.runs.failure import MAX_MESSAGE, SUMMARY_CHARACTERS
from skillyard.engine.text import shorten

_CONNECTING = re.compile(
    r"\b\w*(?:Connect|Socket|gai|URL|HTTP|Http|Proxy|SSL|TLS|Network|Remote|Resol|Timeout|ClientOS|ClientError|"
    r"OperationalError|CalledProcess|Git)\w*"
)
"""Names of the exceptions that libraries raise when they reach nobody, and of those of programs that fail."""
_NO_WAY = re.compile(
    r"Network is unreachable|Name or service not known|Temporary failure in name resolution|[Cc]ould not resolve host"
)
"""Messages of programs in a sandbox that has no network."""
_NOBODY_LISTENS = re.compile(r"Connection refused|ECONNREFUSED")
_TOLD = 10
_MOST_REASON = 300
_HEADS = re.compile(r"^[\w.]+(?=:|$)", re.MULTILINE)
"""The beginnings of a traceback's lines that name an exception."""


def with_network(record: RunRecord, network: Mapping[str, Any]) -> RunRecord:
    """Returns the last record with its connections. One of a run that failed to connect says which was refused, and
    why."""
    told = replace(record, network=dict(network))
    error = record.error
    if error is None or record.status is not RunStatus.FAILED or not failed_to_connect(error):
        return told
    return _hinted(told, error, refusal(network) or _unseen(error, network))


def without_network(record: RunRecord, why: str) -> RunRecord:
    """Returns the last record of a run without a network. One that failed for want of it says ``why`` it had none."""
    error = record.error
    if error is None or record.status is not RunStatus.FAILED:
        return record
    if not _NO_WAY.search(f"{error.get('message', '')}\n{error.get('traceback', '')}"):
        return record
    return _hinted(record, error, f"(network: the run had none: {why})")


def refusal(network: Mapping[str, Any]) -> str:
    """Returns a text about the last connection that was refused or failed, empty without any.

    ``(network: api.y.com:443 refused: no skill rule allows api.y.com)``"""
    wrong = [c for c in network.get("connections", ()) if not c["allowed"] or c["reason"]]
    if not wrong:
        return ""
    last = max(wrong, key=lambda c: c["last_ms"])
    more = f"; {len(wrong) - 1} more in the record" if len(wrong) > 1 else ""
    return f"(network: {_told(last)}{more})"


def _unseen(error: Mapping[str, Any], network: Mapping[str, Any]) -> str:
    """Returns the rules in force, for a refusal that the gate did not see. The sandbox itself refuses ports that no
    rule names."""
    if _NOBODY_LISTENS.search(f"{error.get('message', '')}\n{error.get('traceback', '')}") is None:
        return ""
    layers = "; ".join(
        f"{layer['name']}: {' '.join(layer['rules']) or 'none'}" for layer in network.get("in_force", network["layers"])
    )
    said = "a port that no rule names is refused at once, before the gate sees it; rules in force are"
    return f"(network: {said} {shorten(layers, _MOST_REASON)})"


def used(record: RunRecord) -> NetworkUsed:
    """Returns the event for the last record of a run that had a network."""
    network = record.network or {}
    return NetworkUsed(
        run_id=record.run_id,
        principal=record.principal,
        skill=record.skill,
        refusals=tuple(map(_told, _refused(network)[:_TOLD])),
        **counted(network),
    )


def counted(network: Mapping[str, Any]) -> dict[str, int]:
    """Returns how many connections of a record were allowed and refused, and their bytes."""
    connections = network.get("connections", ())
    return {
        "allowed": sum(c["count"] for c in connections if c["allowed"]),
        "refused": sum(c["count"] for c in connections if not c["allowed"]),
        "sent_bytes": sum(c["sent_bytes"] for c in connections),
        "received_bytes": sum(c["received_bytes"] for c in connections),
    }


def failed_to_connect(error: Mapping[str, Any]) -> bool:
    """Returns whether some exception behind ``error`` looks like one of a connection."""
    names = [str(error.get("type", "")), *_HEADS.findall(str(error.get("traceback", "")))]
    return any(_CONNECTING.search(name) for name in names)


def _refused(network: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [connection for connection in network.get("connections", ()) if not connection["allowed"]]


def _told(connection: Mapping[str, Any]) -> str:
    """An entry without a host is of the gate itself."""
    reason = connection["reason"]
    if not connection["host"]:
        return str(reason)
    how = "failed" if connection["allowed"] else "refused"
    return f"{host_and_port(connection['host'], connection['port'])} {how}: {reason}"


def _hinted(record: RunRecord, error: Mapping[str, Any], said: str) -> RunRecord:
    if not said:
        return record
    head = shorten(str(error["message"]), MAX_MESSAGE - len(said.encode()) - 1)
    room = max(SUMMARY_CHARACTERS - len(said) - 1, len(str(error["type"])))
    return replace(
        record,
        error={**error, "message": f"{head} {said}".lstrip()},
        reason=f"{record.reason} {said}".lstrip(),
        summary=f"{record.summary[:room].rstrip()} {said}"[:SUMMARY_CHARACTERS],
    )
