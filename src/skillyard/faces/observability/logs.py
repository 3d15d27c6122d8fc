"""The server's log, with the engine's events: one JSON object a line on standard error.

It holds no secret. Writing a line never blocks a request. Each event of a run has the run's id.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import lru_cache
from threading import Event as Flag
from threading import Thread
from traceback import extract_tb
from types import TracebackType
from typing import Any, Literal, TextIO

from skillyard.engine.observer import (
    EnvironmentFailed,
    Event,
    Fault,
    LeaseLost,
    NetworkUsed,
    Observer,
    PartLost,
    PartRestarted,
    PartVersion,
    RunEnded,
    RunQueued,
    RunRefused,
    RunStarted,
    SecretsGiven,
)

LogFormat = Literal["json", "console"]

QUEUE = 10_000
"""Records that may wait while the reader of standard error is slow; further ones are dropped and counted."""
TOGETHER_S = 0.25
"""How long a record below a warning waits for others, to be written with them."""

_NOT_LOOKED_UP = ("_srcfile", "logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks")
"""The facts about a record's origin that no line shows; the handbook of ``logging`` says how to leave them out."""

MAX_TEXT = 2000
_SECRET_KEY = re.compile(r"authorization|token|secret|password|cookie|api_?key", re.IGNORECASE)
_BEARER = re.compile(r"\bbearer\s+\S+", re.IGNORECASE)
_NAMES_ONLY = frozenset({"secret_names"})


@contextmanager
def logging_to(stream: TextIO | None = None, *, level: str = "info", style: LogFormat = "json") -> Iterator[None]:
    """Logs to ``stream`` (standard error) at ``level`` and above until the block ends."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Lines(style))
    entrance = _Entrance(handler)
    root, previous = logging.getLogger(), logging.getLogger().level
    root.addHandler(entrance)
    root.setLevel(level.upper())
    before = {name: getattr(logging, name) for name in _NOT_LOOKED_UP if hasattr(logging, name)}
    for name in before:
        setattr(logging, name, None)
    quieten_uvicorn(root.level)
    logging.getLogger("httpx2").setLevel(max(root.level, logging.WARNING))  # it tells of each request
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(logging, name, value)
        root.removeHandler(entrance)
        root.setLevel(previous)
        entrance.stop()


class _Entrance(logging.Handler):
    """Takes records on the caller's thread; they are rendered and written on one of its own.

    That thread is woken for many records at once: to wake it for each took a tenth of a short run's time. While records
    come, it looks for them by itself.
    """

    def __init__(self, writer: logging.Handler) -> None:
        super().__init__()
        self._writer = writer
        self._waiting: deque[logging.LogRecord] = deque()
        self._dropped = 0
        self._some, self._hurry = Flag(), Flag()
        self._over = False
        self._thread = Thread(target=self._run, name="skillyard-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._waiting) >= QUEUE:
            self._dropped += 1
            return
        if self._dropped:
            record.dropped_before, self._dropped = self._dropped, 0
        self._waiting.append(record)
        if not self._some.is_set():
            self._some.set()
        if record.levelno >= logging.WARNING and not self._hurry.is_set():
            self._hurry.set()

    def stop(self) -> None:
        """Returns when all that was taken is written."""
        self._over = True
        self._some.set()
        self._hurry.set()
        self._thread.join()

    def _run(self) -> None:
        over = some = False
        while not over:
            over = self._over
            if not over:
                if not some:
                    self._some.wait()
                self._hurry.wait(TOGETHER_S)
                self._hurry.clear()
            if not self._waiting:
                self._some.clear()  # before the look: a record that comes behind it sets it again
            some = bool(self._waiting)
            while self._waiting:
                self._writer.handle(self._waiting.popleft())


def quieten_uvicorn(level: int) -> None:
    """Leaves out uvicorn's lines about its start, its stop and malformed requests.

    The server counts malformed requests instead: nobody fills the disk without a token.
    """
    logger = logging.getLogger("uvicorn.error")
    logger.setLevel(max(level, logging.ERROR))
    logger.addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or kind.__name__ != "BrokenResponse"


class _Lines(logging.Formatter):
    """A record's message and extras as one event."""

    def __init__(self, style: LogFormat) -> None:
        super().__init__()
        self._render = _as_json if style == "json" else _console_renderer()

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "timestamp": _instant(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        event |= {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
        if record.exc_info and record.exc_info[0] is not None:
            event |= _exception(record.exc_info)
        return self._render({k: _clean(k, v) for k, v in event.items()})


def _as_json(event: dict[str, Any]) -> str:
    return json.dumps(event, default=_shown)


def _console_renderer() -> Callable[[dict[str, Any]], str]:
    # It imports a hundred modules, and most servers write JSON.
    from structlog.dev import ConsoleRenderer

    render = ConsoleRenderer()
    return lambda event: str(render(None, event["level"], event))


_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def _instant(created: float) -> str:
    """Adds the time at which it happened, not at which it is written."""
    return datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds")


def _clean(key: str, value: Any) -> Any:
    """Takes out credentials, by name or form, and cuts long text."""
    if _is_secret(key):
        return "[redacted]"
    if not isinstance(value, str):
        return value
    return _BEARER.sub("Bearer [redacted]", value[:MAX_TEXT])


@lru_cache(1000)
def _is_secret(key: str) -> bool:
    return _SECRET_KEY.search(key) is not None and key not in _NAMES_ONLY


def _exception(info: tuple[type[BaseException], BaseException, TracebackType | None]) -> dict[str, Any]:
    """Adds where it was raised: frames and the error's own words, never a variable's value."""
    kind, error, trace = info
    frames = [f"{f.filename}:{f.lineno} {f.name}" for f in extract_tb(trace)[-20:]]
    return {"error_type": kind.__name__, "error": str(error), "trace": frames}


def _shown(value: object) -> str:
    return str(value)[:MAX_TEXT]


logger = logging.getLogger("skillyard.engine")

_LEVELS: dict[type, int] = {
    RunQueued: logging.DEBUG,
    RunStarted: logging.DEBUG,
    NetworkUsed: logging.DEBUG,
    RunRefused: logging.WARNING,
    EnvironmentFailed: logging.WARNING,
    LeaseLost: logging.WARNING,
    Fault: logging.ERROR,
    PartLost: logging.ERROR,
    PartRestarted: logging.WARNING,
    PartVersion: logging.WARNING,
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
    """``refused`` is the error's type of a run that never had a sandbox; no code chose it."""
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
