"""The paths and host names by which the ports of services are reached."""

from __future__ import annotations

import re
from typing import Any

from skillyard.config.services import ServiceSettings
from skillyard.domain.work.record import RunRecord

TICKET = "skillyard_ticket"
"""The query parameter that holds a ticket. It never passes on."""
_PREFIX = "/services/"
_TASK = re.compile(r"run_([a-z0-9]{1,52})")


def path_of(task_id: str, port: int) -> str:
    return f"{_PREFIX}{task_id}/{port}/"


class Endpoints:
    """Tells where the ports of services are reached."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self.own_port: int | None = None
        """The port of the server; None where there is none."""

    def of(self, record: RunRecord) -> list[dict[str, Any]]:
        """Returns for each port of a service its path, and the host name of its own with a URL."""
        found = []
        for port in (record.service or {}).get("ports", ()):
            host = self.host(record.run_id, port)
            url = None if host is None else self.url(host, "")
            found.append({"port": port, "path": path_of(record.run_id, port), "host": host, "url": url})
        return found

    def host(self, task_id: str, port: int) -> str | None:
        """Returns the host name of a port; None without a domain, or for an id that does not fit."""
        match, domain = _TASK.fullmatch(task_id), self._settings.domain
        return f"{port}-{match[1]}.{domain}" if match and domain else None

    def url(self, host: str, rest: str) -> str | None:
        """Returns the URL of such a name; None where no server listens."""
        settings = self._settings
        scheme, usual = ("https", 443) if settings.https else ("http", 80)
        port = settings.public_port or (usual if settings.https else self.own_port)
        if self.own_port is None:
            return None
        return f"{scheme}://{host}{'' if port == usual else f':{port}'}/{rest}"
