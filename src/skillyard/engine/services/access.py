"""Connections to the ports that services expose. Each is judged by itself: whose service it is, and which port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial

from skillyard.config.services import ServiceSettings
from skillyard.domain.errors import Busy, InvalidInput, SandboxGone, TaskNotFound, shown
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.work.record import RunRecord
from skillyard.engine.runs.active import ActiveRuns
from skillyard.engine.services.idle import Connection, IdleStreams, Port
from skillyard.engine.shares import Budget
from skillyard.engine.tasks import Tasks
from skillyard.ports.sandbox import ByteStream, Forwarding

TOOL = "skills.run_service"
"""The tool that a profile names to allow services, and their ports."""
_SOON_MS = 1000


class NotListening(Busy):
    """No program listens on the port yet; repeat the request after ``retry_after_ms``."""

    type = "NotListening"


Owned = Callable[[Principal, str], Awaitable[RunRecord]]
"""Returns the record of a task that the principal may see, and raises TaskNotFound."""


class PortAccess:
    """Connects to ports of services. The settings bound the connections of each, and of all."""

    def __init__(self, owned: Owned, active: ActiveRuns, tasks: Tasks, settings: ServiceSettings) -> None:
        self._owned = owned
        self._active = active
        self.idle = IdleStreams(tasks, settings.idle_connections)
        each, most = settings.connections_each, settings.connections
        self._of_service = Budget(most, each, "the service has too many connections; come again later")
        self._of_project = Budget(most, max(each, most // 2), "there are too many connections to services at once")

    async def check(self, principal: Principal, task_id: str, port: int) -> RunRecord:
        """Returns the record of a service that goes on and exposes ``port``.

        Raises Forbidden, TaskNotFound, InvalidInput for a port that it does not expose, and for one that has ended.
        """
        principal.require_tool(TOOL)
        principal.require(Scope.RUN_CODE)
        record = await self._owned(principal, task_id)
        if record.skill is not None and not principal.may_use(record.skill):
            raise TaskNotFound("task_id", f"no task '{task_id}'", task_id=task_id)
        if record.stay is None and (record.service is None or port not in record.service["ports"]):
            raise InvalidInput("port", "must be one that the service exposes (expose_ports)", shown(port))
        if not record.status.live:
            raise InvalidInput("task_id", "must be of a service that goes on: this one has ended")
        if not (record.stay or {}).get("ports", True):
            rule = f"cannot be reached: the isolation '{record.isolation}' has no way to ports of a sandbox"
            raise InvalidInput("port", rule, shown(port))
        if (record.stay or {}).get("paused"):
            raise InvalidInput("task_id", "must be of a service that goes on: this one is paused")
        return record

    @asynccontextmanager
    async def connect(
        self, principal: Principal, task_id: str, port: int, *, again: bool = False
    ) -> AsyncIterator[Connection]:
        """Connects to a port for the block. Raises what :meth:`check` raises, NotListening, Busy.

        ``again`` tells a request that may be sent twice: a connection that was kept may end before it is answered.
        """
        record = await self.check(principal, task_id, port)
        with ExitStack() as held:
            held.enter_context(self._of_service.holding(task_id))
            held.enter_context(self._of_project.holding(record.project))
            where, dial = Port(task_id, port, principal.name), partial(self._forwarded, task_id, port)
            kept = self.idle.take(where) if again else None
            connection = Connection(self.idle, where, dial, kept or await dial(), used=kept is not None)
            try:
                yield connection
            finally:
                await connection.leave()

    async def _forwarded(self, task_id: str, port: int) -> ByteStream:
        active = self._active.get(task_id)
        sandbox: object = None if active is None else active.sandbox
        if not isinstance(sandbox, Forwarding):
            raise NotListening("the service is not at work yet; come again", retry_after_ms=_SOON_MS)
        try:
            return await sandbox.forward(port)
        except (InvalidInput, SandboxGone):
            raise NotListening(
                f"no program of the service listens on port {port} now", retry_after_ms=_SOON_MS
            ) from None
