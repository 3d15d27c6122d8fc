"""The server object over an engine that does as it is told, and clients of it in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from skillyard.config.faces.mcp import McpSettings
from skillyard.domain.principal import LOCAL, Principal
from skillyard.domain.work.record import RunRecord
from skillyard.faces.mcp.caller import Callers
from skillyard.faces.mcp.following import Following, LogLevels
from skillyard.faces.mcp.server import server_of
from tests.faces.support import Engine

COMPLETED: dict[str, Any] = {"run_id": "run_1", "status": "completed", "summary": "Completed", "output": {"sum": 6}}
FAILED: dict[str, Any] = {
    "run_id": "run_2",
    "status": "failed",
    "summary": "ZeroDivisionError: division by zero",
    "error": {"type": "ZeroDivisionError", "message": "division by zero"},
}
CODE = {"language": "python", "code": "def main(args): return {}"}
PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"


def answering(engine: Engine, method: str, value: dict[str, Any]) -> None:
    async def answer(_principal: Principal, _params: dict[str, Any]) -> dict[str, Any]:
        return value

    engine.handlers[method] = answer


class Told:
    """Records that a test announces, and one page of a log."""

    def __init__(self, content: str = "") -> None:
        self.content = content
        self.listeners: list[Callable[[RunRecord], None]] = []
        self.asked: list[str] = []

    def listen(self, listener: Callable[[RunRecord], None]) -> None:
        self.listeners.append(listener)

    def ignore(self, listener: Callable[[RunRecord], None]) -> None:
        self.listeners.remove(listener)

    def announce(self, run_id: str, principal: str, labels: dict[str, str]) -> None:
        class Record:
            pass

        record: Any = Record()
        record.run_id, record.principal, record.labels = run_id, principal, labels
        for listener in self.listeners:
            listener(cast("RunRecord", record))

    async def logs(
        self, principal: Principal, run_id: str, offset: int, max_bytes: int, wait_ms: int
    ) -> dict[str, Any]:
        self.asked.append(run_id)
        return {"content": self.content, "next_offset": len(self.content), "complete": True}


def server(
    engine: Engine,
    settings: McpSettings | None = None,
    principal: Principal = LOCAL,
    told: Told | None = None,
) -> Any:
    told = told or Told()
    levels = LogLevels()
    following = Following(lambda: told, lambda: told, levels)
    return server_of(settings or McpSettings(), Callers(engine.invoke, lambda _context: principal), following, levels)
