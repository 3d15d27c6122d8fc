"""The ASGI application, put together, and its probes: ``/healthz``, ``/readyz`` and ``/metrics``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Protocol

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from skillyard.domain.principal import Scope as Right
from skillyard.engine.blobs.service import BlobService
from skillyard.engine.skills.publishing import Publisher
from skillyard.faces.http import request
from skillyard.faces.http.blobs import BlobEndpoint, Traffic
from skillyard.faces.http.errors import MethodNotAllowed, NotFound
from skillyard.faces.http.guard import OPEN_PATHS, Authentication, Authenticator, Guard, Hosts, principal_of
from skillyard.faces.http.lifecycle import Lifecycle, Phase
from skillyard.faces.http.replies import Count, Edge, reply
from skillyard.faces.http.rpc import MAX_BODY, RpcEndpoint
from skillyard.faces.http.services.endpoint import ByHostName, HostEndpoint, PathEndpoint, ServiceFace
from skillyard.faces.http.skills import SkillEndpoint
from skillyard.faces.rpc.dispatcher import Dispatcher
from skillyard.faces.rpc.wire import dumps
from skillyard.values import dataclass

METRICS = "metrics"
"""The tool that a profile names to allow ``/metrics``."""
METRICS_KIND = "text/plain; version=0.0.4; charset=utf-8"


class Probes:
    """Health, readiness and metrics; ``open_metrics`` shows the metrics without a token."""

    def __init__(self, lifecycle: Lifecycle, render: Callable[[], bytes], open_metrics: bool = False) -> None:
        self._lifecycle = lifecycle
        self._render = render
        self._open_metrics = open_metrics

    async def healthz(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answers 200 while the process lives."""
        _check_get(scope)
        await reply(send, 200, dumps({"status": "ok"}))

    async def readyz(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answers 200 while the backend is ready and all processes live, else 503 with a reason."""
        _check_get(scope)
        dead = dict(self._lifecycle.dead())
        phase = self._lifecycle.phase
        if phase is Phase.READY and self._lifecycle.draining():
            phase = Phase.DRAINING
        ready = phase is Phase.READY and not dead
        status = "not ready" if dead and phase is Phase.READY else str(phase)
        content = {"status": status, **self._lifecycle.facts, **({"dead": dead} if dead else {})}
        if older := self._lifecycle.older():
            content["older"] = dict(older)
        await reply(send, 200 if ready else 503, dumps(content))

    async def metrics(self, scope: Scope, _receive: Receive, send: Send) -> None:
        _check_get(scope)
        if not self._open_metrics:
            principal = principal_of(scope)
            principal.require_tool(METRICS)
            principal.require(Right.ADMIN)
        await reply(send, 200, self._render(), kind=METRICS_KIND)


def _check_get(scope: Scope) -> None:
    if scope["method"] not in ("GET", "HEAD"):
        raise MethodNotAllowed("GET", "HEAD")


class HttpMeter(Traffic, Protocol):
    def response(self, path: str, status: int) -> None: ...

    def service(self, path: str, status: int) -> None: ...

    def render(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The most bytes of an /rpc body, of all of them, of a blob and a bundle; their pace."""

    rpc_body: int = MAX_BODY
    rpc_bodies: int = 8 * MAX_BODY
    blob: int = 4 * 1024**3
    bundle: int = 32 * 1024**2
    pace: request.Pace = field(default_factory=request.Pace)


Beside = Callable[[ASGIApp, Count], ASGIApp]
"""Puts a face with guards of its own before an application."""


def create_app(
    *,
    dispatcher: Dispatcher,
    blobs: Callable[[], BlobService],
    skills: Callable[[], Publisher],
    authenticator: Authenticator,
    hosts: Hosts,
    meter: HttpMeter,
    lifecycle: Lifecycle,
    limits: HttpLimits | None = None,
    open_metrics: bool = False,
    services: ServiceFace | None = None,
    more_routes: Sequence[BaseRoute] = (),
    open_routes: Sequence[Route] = (),
    described: Mapping[str, Callable[[Scope], str]] = MappingProxyType({}),
    beside: Beside | None = None,
    origins: Sequence[str] = (),
) -> ASGIApp:
    """Serves once ``lifecycle`` is ready. ``more_routes`` are other faces, behind the same guard and auth.

    ``open_routes`` need no token, ``described`` is that of :class:`Authentication`.

    ``services`` opens the ports of services, by path and by name. ``beside`` puts a face with guards of its own before
    all others. Pages of ``origins`` may call, and see answers.
    """
    limits = limits or HttpLimits()
    probes = Probes(lifecycle, meter.render, open_metrics)
    rpc = RpcEndpoint(dispatcher, lifecycle, request.ByteBudget(limits.rpc_bodies), limits.rpc_body, limits.pace)
    blob = BlobEndpoint(blobs, meter, lifecycle, limits.blob, limits.pace)
    skill = SkillEndpoint(skills, meter, lifecycle, limits.bundle, limits.pace)
    open_paths = OPEN_PATHS | ({"/metrics"} if open_metrics else set()) | {route.path for route in open_routes}
    router = Router(
        routes=[
            Route("/rpc", rpc),
            Route("/blobs", Endpoint(blob.collection)),
            Route("/blobs/{blob_id}", Endpoint(blob.item)),
            Route("/skills", Endpoint(skill.collection)),
            Route("/skills/{name}/{version}", Endpoint(skill.item)),
            Route("/healthz", Endpoint(probes.healthz)),
            Route("/readyz", Endpoint(probes.readyz)),
            Route("/metrics", Endpoint(probes.metrics)),
            *([] if services is None else [Route("/services/{place:path}", PathEndpoint(services))]),
            *more_routes,
            *open_routes,
        ],
        redirect_slashes=False,
        default=_nothing_here,
    )
    authenticated = Authentication(router, lifecycle, authenticator, open_paths, described)
    own: ASGIApp = Edge(Guard(authenticated, hosts, origins), meter.response)
    if origins:
        own = Pages(own, origins)
    if services is not None and services.settings.domain:
        ports = Edge(HostEndpoint(services, lifecycle), meter.service, foreign=True)
        own = ByHostName(own, ports, services.settings.domain)
    return own if beside is None else beside(own, meter.response)


class Pages:
    """ASGI middleware: lets pages of other origins see answers (CORS).

    Answers of services are foreign and not shown. Cookies are not credentials: a page sends the token itself.
    """

    _SERVICES = "/services/"

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._open = CORSMiddleware(
            app,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=_SENT,
            expose_headers=["mcp-session-id", "retry-after", "www-authenticate"],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app if scope.get("path", "").startswith(self._SERVICES) else self._open
        await app(scope, receive, send)


_SENT = [
    "authorization", "content-type", "last-event-id", "mcp-method", "mcp-name",
    "mcp-protocol-version", "mcp-session-id", "range",
]  # fmt: skip
"""Header fields that clients in browsers send."""


class Endpoint:
    """Marks a function as an ASGI application for Starlette; it checks the HTTP method itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


async def _nothing_here(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise NotFound("there is nothing at this path")
