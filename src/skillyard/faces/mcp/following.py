"""Tells a client of its run at work: progress, and its output as log messages.

Clients give up a call that is silent. A run is found by a label that its call gives it. Output is hostile: it goes as
data, cut, and without control characters.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from mcp.server.connection import allowed_log_levels
from mcp_types import LoggingLevel, LoggingMessageNotification, LoggingMessageNotificationParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from skillyard.domain.errors import SkillyardError
from skillyard.domain.principal import Principal
from skillyard.domain.work.labels import MOST_LABELS
from skillyard.domain.work.record import RunRecord
from skillyard.faces.mcp.caller import Context

LABEL = "mcp.call"
BEAT_MS = 5000
"""Longest silence of a run's progress: clients commonly give up after 30 or 60 seconds."""
PAGE_BYTES = 16 * 1024
MESSAGE = 200
OUTPUT: LoggingLevel = "info"
_LEVELS: tuple[LoggingLevel, ...] = (
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency",
)  # fmt: skip
_MOST_SESSIONS = 10_000


class History(Protocol):
    async def logs(
        self, principal: Principal, run_id: str, offset: int, max_bytes: int, wait_ms: int
    ) -> dict[str, Any]: ...


class Records(Protocol):
    def listen(self, listener: Callable[[RunRecord], None]) -> None: ...

    def ignore(self, listener: Callable[[RunRecord], None]) -> None: ...


class LogLevels:
    """The least level that each session of an earlier revision asked for. A session that never asked gets no output."""

    def __init__(self) -> None:
        self._levels: OrderedDict[str, LoggingLevel] = OrderedDict()

    def set(self, context: Context, level: LoggingLevel) -> None:
        self._levels[_session(context)] = level
        if len(self._levels) > _MOST_SESSIONS:
            self._levels.popitem(last=False)

    def wants_output(self, context: Context) -> bool:
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return OUTPUT in allowed_log_levels(context.protocol_version, (context.params or {}).get("_meta"))
        level = self._levels.get(_session(context))
        return level is not None and _LEVELS.index(level) <= _LEVELS.index(OUTPUT)


def _session(context: Context) -> str:
    return "" if context.request is None else str(context.request.headers.get("mcp-session-id", ""))


class Following:
    """Follows runs. ``records`` tells of their beginning, ``history`` has their output."""

    def __init__(self, records: Callable[[], Records], history: Callable[[], History], levels: LogLevels) -> None:
        self._records = records
        self._history = history
        self._levels = levels

    @asynccontextmanager
    async def run(
        self, context: Context, principal: Principal, params: Mapping[str, Any]
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Yields the parameters to call with.

        While the block works, the client hears of the run that they start.
        """
        meta = (context.params or {}).get("_meta") or {}
        output = self._levels.wants_output(context)
        labels = params.get("labels") or {}
        fit = isinstance(labels, dict) and len(labels) < MOST_LABELS and "idempotency_key" not in params
        if not fit or not (output or "progressToken" in meta):
            yield params
            return
        mark = secrets.token_hex(8)
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def notice(record: RunRecord) -> None:
            if not found.done() and record.labels.get(LABEL) == mark and record.principal == principal.name:
                found.set_result(record.run_id)

        records = self._records()
        records.listen(notice)
        telling = asyncio.create_task(self._tell(context, principal, found, output=output))
        try:
            yield {**params, "labels": {**labels, LABEL: mark}}
        finally:
            records.ignore(notice)
            telling.cancel()
            with suppress(asyncio.CancelledError):
                await telling

    async def _tell(self, context: Context, principal: Principal, found: asyncio.Future[str], *, output: bool) -> None:
        clock = asyncio.get_running_loop().time
        began, offset, page = clock(), 0, None
        await context.session.report_progress(0.0, None, "waiting for a sandbox")
        run_id = await found
        await context.session.report_progress(_since(began, clock()), None, f"{run_id} is running")
        with suppress(SkillyardError):  # too many that wait: the run goes on unseen
            while page is None or not page["complete"]:
                page = await self._history().logs(principal, run_id, offset, PAGE_BYTES, BEAT_MS)
                offset = page["next_offset"]
                text = clean(page["content"])
                if text and output:
                    await _log(context, run_id, text)
                await context.session.report_progress(_since(began, clock()), None, _last_line(text) or "running")


def _since(began: float, now: float) -> float:
    return round(now - began, 3)


def clean(text: str) -> str:
    """Returns text without control characters but tabs and ends of lines."""
    return "".join(c if c.isprintable() or c in "\t\n" else "\ufffd" for c in text)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:MESSAGE] if lines else ""


async def _log(context: Context, run_id: str, text: str) -> None:
    params = LoggingMessageNotificationParams(level=OUTPUT, logger="run", data={"run_id": run_id, "output": text})
    await context.session.send_notification(LoggingMessageNotification(params=params), context.request_id)
