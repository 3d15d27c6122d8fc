"""The engine's events as log records, each with its run's id."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from skillyard.engine.observer import (
    EnvironmentFailed,
    Event,
    Fault,
    NetworkUsed,
    Observer,
    PartLost,
    PartRestarted,
    RunEnded,
    RunQueued,
    RunRefused,
    RunStarted,
    SecretsGiven,
)

logger = logging.getLogger("skillyard.engine")

_LEVELS: dict[type, int] = {
    RunQueued: logging.DEBUG,
    RunStarted: logging.DEBUG,
    NetworkUsed: logging.DEBUG,
    RunRefused: logging.WARNING,
    EnvironmentFailed: logging.WARNING,
    Fault: logging.ERROR,
    PartLost: logging.ERROR,
    PartRestarted: logging.WARNING,
}


def log_event(event: Event, /) -> None:
    """Logs an event of the engine. Output, arguments, error messages and secret values are never logged."""
    level = _level(event)
    if not logger.isEnabledFor(level):
        return
    error = event.error if isinstance(event, Fault) else None
    logger.log(level, _name(event), extra=_fields(event), exc_info=error)


def _level(event: Event) -> int:
    """Returns the level of an event: a refused connection is a warning."""
    if isinstance(event, NetworkUsed) and event.refused:
        return logging.WARNING
    return _LEVELS.get(type(event), logging.INFO)


def fan_out(*observers: Observer) -> Observer:
    """Returns one observer that tells several."""

    def tell(event: Event, /) -> None:
        for observer in observers:
            observer(event)

    return tell


def _fields(event: Event) -> dict[str, Any]:
    match event:
        case RunEnded():
            return _ended(event)
        case Fault():
            return {"where": event.where, "run_id": event.run_id, "part": event.part}
        case SecretsGiven():
            fields = asdict(event)
            return fields | {"secret_names": fields.pop("names")}
        case _:
            fields = asdict(event)
            return {("environment" if key == "name" else key): value for key, value in fields.items()}


def _ended(event: RunEnded) -> dict[str, Any]:
    """``refused`` is the type of the error of a run that never had a sandbox: a word of ours, not of its code."""
    record = event.record
    refused = (record.error or {}).get("type") if record.outcome is None else None
    return {
        "run_id": record.run_id,
        "kind": str(record.kind),
        "skill": record.skill,
        "version": record.version,
        "principal": record.principal,
        "status": str(record.status),
        "outcome": str(record.outcome) if record.outcome else None,
        "refused": refused,
        "total_ms": round(event.total_ms, 3),
        "usage": record.usage,
    }


def _name(event: Event) -> str:
    """Returns ``run ended`` for ``RunEnded``."""
    words = "".join(f" {c.lower()}" if c.isupper() else c for c in type(event).__name__)
    return words.strip()
