"""``skills.run_service`` and ``skills.open_service``: commands that listen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillyard.domain.errors import TaskNotFound
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.work.service import MOST_PATTERN, MOST_PORTS, NEVER, RESTARTS, STARTUP_S
from skillyard.engine.commands.methods import COMMAND_PARAMS, ERRORS
from skillyard.engine.commands.tasks import SERVICE
from skillyard.engine.method import INTEGER, NUMBER, RUN_ID, STRING, Method, Schema, answer, described, list_of, obj
from skillyard.engine.services.service import ServiceRuns
from skillyard.engine.shapes import ENDPOINT, RUN_LIMITS

Params = Mapping[str, Any]
_PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
_PARAMS: dict[str, Schema] = {
    **COMMAND_PARAMS,
    "timeout_sec": described(
        NUMBER, "seconds after which it is ended; commands.max_task_timeout_s when left out", minimum=0.001
    ),
    "expose_ports": list_of(
        _PORT, "TCP ports that it listens on, and that are reached from outside", maxItems=MOST_PORTS
    ),
    "ready_pattern": described(
        STRING, "a regular expression: it is ready when its output has it; else when all ports listen",
        maxLength=MOST_PATTERN,
    ),
    "startup_timeout_sec": described(
        NUMBER, "seconds within which it must be ready; it is ended when it is not", minimum=0.001, maximum=86400,
        default=STARTUP_S,
    ),
    "restart": described(
        {"type": "string", "enum": list(RESTARTS)}, "whether it is started again when it ends with another code than 0",
        default=NEVER,
    ),
}  # fmt: skip


async def run_service(service: ServiceRuns, principal: Principal, params: Params) -> dict[str, Any]:
    return await service.start(principal, params)


async def open_service(service: ServiceRuns, principal: Principal, params: Params) -> dict[str, Any]:
    return await service.open(principal, params["task_id"], params["port"], params["path"])


TABLE = (
    Method(
        name="skills.run_service",
        doc="Run a shell command that listens on ports. It goes on until it is cancelled, whatever becomes of its"
        " caller and of the server, and its exposed ports are reached through the server.",
        params=obj(_PARAMS, "skill_name", "command"),
        example={
            "skill_name": "examples.csv.summarize",
            "command": "exec python3 -m http.server 8000",
            "expose_ports": [8000],
            "restart": "on-failure",
        },
        result=answer(
            {
                "task_id": described(STRING, "the id of its run too"),
                "provider": described(STRING, "the isolation that it runs behind"),
                "mode": described({"type": "string", "enum": [SERVICE]}, "tells it from other tasks"),
                "status": described(STRING, "'queued'; how far the first one is when a key is repeated"),
                "session_id": {"type": ["string", "null"]},
                "skill_name": STRING,
                "version": STRING,
                "workdir": STRING,
                "agent": STRING,
                "limits": RUN_LIMITS,
                "exposed_endpoints": list_of(ENDPOINT, "where each of its ports is reached"),
            }
        ),
        scope=Scope.RUN_CODE,
        errors=ERRORS,
        runs=True,
        service=ServiceRuns,
        handler=run_service,
    ),
    Method(
        name="skills.open_service",
        doc="Get a URL that opens a port of a service in a browser. It works once, within a minute; the browser then"
        " holds a cookie for that port alone.",
        params=obj(
            {
                "task_id": described(RUN_ID, "of skills.run_service"),
                "port": described(_PORT, "one that it exposes"),
                "path": described(STRING, "the page that is opened, with a query perhaps", default="/", maxLength=2048),
            },
            "task_id",
            "port",
        ),
        example={"task_id": "run_SERVICE", "port": 8000},
        result=answer(
            {
                "url": STRING,
                "expires_at": described(NUMBER, "seconds since 1970"),
                "task_id": STRING,
                "port": INTEGER,
            }
        ),
        scope=Scope.RUN_CODE,
        errors=(TaskNotFound,),
        service=ServiceRuns,
        handler=open_service,
    ),
)
