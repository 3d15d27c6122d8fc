"""The server's log: one JSON object a line on standard error, without secrets and without blocking anybody."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from queue import Full, Queue
from traceback import extract_tb
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor

LogFormat = Literal["json", "console"]

QUEUE = 10_000
"""Records that may wait while whoever reads standard error is slow; further ones are dropped and counted."""

MAX_TEXT = 2000
_SECRET_KEY = re.compile(r"authorization|token|secret|password|cookie|api_?key", re.IGNORECASE)
_BEARER = re.compile(r"(?i)\bbearer\s+\S+")
_NAMES_ONLY = frozenset({"secret_names"})


@contextmanager
def logging_to(stream: TextIO | None = None, *, level: str = "info", style: LogFormat = "json") -> Iterator[None]:
    """Log everything at ``level`` and above to ``stream`` (standard error) until the block ends."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_formatter(style))
    records: Queue[logging.LogRecord] = Queue(QUEUE)
    entrance, listener = _Entrance(records), QueueListener(records, handler)
    root, previous = logging.getLogger(), logging.getLogger().level
    root.addHandler(entrance)
    root.setLevel(level.upper())
    _quieten_uvicorn(root.level)
    listener.start()
    try:
        yield
    finally:
        root.removeHandler(entrance)
        root.setLevel(previous)
        listener.stop()


class _Entrance(QueueHandler):
    """Takes records on the caller's thread; they are rendered and written on the listener's."""

    def __init__(self, records: Queue[logging.LogRecord]) -> None:
        super().__init__(records)
        self._dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        if self._dropped:
            record.dropped_before = self._dropped
        try:
            self.queue.put_nowait(record)
        except Full:
            self._dropped += 1
        else:
            self._dropped = 0


def _quieten_uvicorn(level: int) -> None:
    """Its start and stop are ours to announce. What strangers send, and answers that they do not wait for, are
    counted and not logged: nobody fills our disk without a token."""
    logger = logging.getLogger("uvicorn.error")
    logger.setLevel(max(level, logging.ERROR))
    logger.addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or kind.__name__ != "BrokenResponse"


def _formatter(style: LogFormat) -> logging.Formatter:
    render: Processor = (
        structlog.processors.JSONRenderer(default=_shown) if style == "json" else structlog.dev.ConsoleRenderer()
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            _stamp,
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            _exception,
            redact,
            render,
        ],
    )


def redact(_logger: Any, _name: str, event: EventDict) -> EventDict:
    """A structlog processor: no value whose name or form says that it is a credential, no endless text."""
    return {key: _clean(key, value) for key, value in event.items()}


def _clean(key: str, value: Any) -> Any:
    if _SECRET_KEY.search(key) and key not in _NAMES_ONLY:
        return "[redacted]"
    if isinstance(value, str):
        return _BEARER.sub("Bearer [redacted]", value)[:MAX_TEXT]
    return value


def _stamp(_logger: Any, _name: str, event: EventDict) -> EventDict:
    """When it happened, not when it was written."""
    moment = datetime.fromtimestamp(event["_record"].created, UTC)
    event["timestamp"] = moment.isoformat(timespec="milliseconds")
    return event


def _exception(_logger: Any, _name: str, event: EventDict) -> EventDict:
    """Where it was raised: frames and the error's own words, never a variable's value."""
    info = event.pop("exc_info", None)
    if not info or not isinstance(info, tuple) or info[0] is None:
        return event
    kind, error, trace = info
    event["error_type"] = kind.__name__
    event["error"] = str(error)
    event["trace"] = [f"{f.filename}:{f.lineno} {f.name}" for f in extract_tb(trace)[-20:]]
    return event


def _shown(value: object) -> str:
    return str(value)[:MAX_TEXT]
