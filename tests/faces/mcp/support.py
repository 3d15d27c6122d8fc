"""The server object over an engine that does as it is told, and clients of it in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from skillyard.config.faces.mcp import McpSettings
from skillyard.domain.principal import LOCAL, Principal
from skillyard.domain.work.record import RunRecord
from skillyard.engine.table import invoke
from skillyard.faces.mcp.approvals import Approvals
from skillyard.faces.mcp.assembly import parts_of
from skillyard.faces.mcp.caller import Callers
from skillyard.faces.mcp.changes import Changes
from skillyard.faces.mcp.following import Following, LogLevels
from skillyard.faces.mcp.resources import ResourceFace
from skillyard.faces.mcp.server import Parts, server_of
from skillyard.faces.mcp.servers import ServerFace
from skillyard.faces.mcp.skills import SkillFace
from skillyard.faces.mcp.tasks import TaskFace
from skillyard.faces.news import News
from skillyard.runtime import Runtime
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
    told, settings, levels = told or Told(), settings or McpSettings(), LogLevels()
    callers = Callers(engine.invoke, lambda _context: principal)

    async def nobody(_principal: Principal, _name: str) -> bool:
        return False

    async def revision() -> str:
        return "1"

    async def answer(context: Any, value: Any) -> Any:
        raise NotImplementedError

    async def never(_principal: Principal, _params: Any) -> bool:
        return False

    skills = SkillFace(settings, callers, nobody)
    return server_of(
        Parts(
            settings,
            callers,
            Following(lambda: told, lambda: told, levels),
            levels,
            skills,
            ResourceFace(callers, skills),
            Approvals(callers, ask=False),
            TaskFace(callers, lambda: cast("Any", told), answer, None, never, lambda: told),
            Changes(revision, callers.principal_of, 10, 10),
            ServerFace(callers, bool(settings.servers)),
        )
    )


def face_of(runtime: Runtime, principal: Principal = LOCAL, news: News | None = None) -> tuple[Any, Parts]:
    """Returns the server over a real runtime, and its parts."""

    async def call(who: Principal, name: str, params: dict[str, Any]) -> dict[str, Any]:
        return await invoke(runtime.app, who, name, params)

    parts = parts_of(runtime, Callers(call, lambda _context: runtime.bound(principal)), news or News())
    return server_of(parts), parts
