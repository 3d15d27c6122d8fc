"""Starts services, and opens their ports. A service is a task that listens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from skillyard.config.services import ServiceSettings
from skillyard.domain.errors import InvalidInput, shape, shown
from skillyard.domain.principal import Principal
from skillyard.domain.work.service import from_params
from skillyard.engine.commands.service import CommandService, status_of
from skillyard.engine.commands.tasks import SERVICE, TaskService
from skillyard.engine.runs.active import ActiveRuns
from skillyard.engine.runs.service import RunService
from skillyard.engine.services.access import PortAccess
from skillyard.engine.services.names import TICKET, Endpoints
from skillyard.engine.services.tickets import TICKET_S, Tickets
from skillyard.engine.tasks import Tasks
from skillyard.ports.clock import Clock

Params = Mapping[str, Any]


class ServiceRuns:
    """Starts services and opens their ports for browsers. ``longest_s`` is the time of one that names none."""

    def __init__(
        self,
        commands: CommandService,
        runs: RunService,
        tasks: TaskService,
        active: ActiveRuns,
        background: Tasks,
        endpoints: Endpoints,
        clock: Clock,
        settings: ServiceSettings,
        longest_s: float,
    ) -> None:
        self._commands = commands
        self._runs = runs
        self._clock = clock
        self._longest_s = longest_s
        self.endpoints = endpoints
        self.access = PortAccess(tasks.at_work, active, background, settings)
        self.tickets = Tickets(clock, settings)

    async def start(self, principal: Principal, params: Params) -> dict[str, Any]:
        """Returns the answer for a service that is stored, and outlives its caller.

        Without ``session_id`` it has a sandbox of its own: ``reuse_mode`` is for calls that end.
        Raises what :meth:`RunService.record` raises, QuotaExceeded, UnsupportedLanguage.
        """
        service = from_params(params)
        alone = params.get("session_id") is None
        request = await self._commands.request(principal, params, task=True, alone=alone, usual_s=self._longest_s)
        assert request.command is not None, "it is one"
        request = replace(request, command=replace(request.command, service=service))
        record = await self._runs.record(principal, request)
        return {
            "task_id": record.run_id,
            "provider": record.isolation,
            "mode": SERVICE,
            "status": status_of(record),
            "session_id": record.session,
            "workdir": params["workdir"],
            "skill_name": record.skill,
            "version": record.version,
            "agent": record.agent,
            "limits": record.limits,
            "exposed_endpoints": self.endpoints.of(record),
        }

    async def open(self, principal: Principal, task_id: str, port: int, path: str) -> dict[str, Any]:
        """Returns the URL that opens a port in a browser, once and within a minute.

        Raises Forbidden and TaskNotFound. Raises InvalidInput for a port that is not exposed, and in a process
        that serves no HTTP.
        """
        if not path.startswith("/") or not path.isprintable() or "#" in path:
            raise InvalidInput("path", "must begin with '/' and be printable, without '#'", shape(path))
        await self.access.check(principal, task_id, port)
        host = self.endpoints.host(task_id, port)
        ticket = self.tickets.issue(principal.name, task_id, port)
        path, _, query = path.partition("?")
        more = "&".join(filter(None, (quote(query, safe="=&%+,;:@/?!$'()*~-._"), f"{TICKET}={ticket}")))
        rest = quote(path[1:], safe="/%:@!$&'()*+,;=~-._") + f"?{more}"
        url = None if host is None else self.endpoints.url(host, rest)
        if url is None:
            rule = "has no URL for browsers: that takes a server, and the setting services.domain"
            raise InvalidInput("port", rule, shown(port))
        return {"url": url, "expires_at": self._clock.now() + TICKET_S, "task_id": task_id, "port": port}
