"""The ASGI application, put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from skillyard.faces.http import body
from skillyard.faces.http.auth import OPEN_PATHS, Authentication, Authenticator
from skillyard.faces.http.blobs import BlobAccess, BlobEndpoint
from skillyard.faces.http.edge import Edge
from skillyard.faces.http.errors import NotFound
from skillyard.faces.http.guard import Guard, Hosts
from skillyard.faces.http.lifecycle import Lifecycle
from skillyard.faces.http.probes import Probes
from skillyard.faces.http.rpc import MAX_BODY, RpcEndpoint
from skillyard.faces.http.skills import SkillAccess, SkillEndpoint
from skillyard.faces.rpc import Dispatcher


class HttpMeter(Protocol):
    def response(self, path: str, status: int) -> None: ...

    def received(self, count: int) -> None: ...

    def sent(self, count: int) -> None: ...

    def render(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bytes: of one /rpc body, of all of them together, of one blob, of one bundle; how slowly a body may come."""

    rpc_body: int = MAX_BODY
    rpc_bodies: int = 8 * MAX_BODY
    blob: int = 4 * 1024**3
    bundle: int = 32 * 1024**2
    pace: body.Pace = field(default_factory=body.Pace)


def create_app(
    *,
    dispatcher: Dispatcher,
    blobs: Callable[[], BlobAccess],
    skills: Callable[[], SkillAccess],
    authenticator: Authenticator,
    hosts: Hosts,
    meter: HttpMeter,
    lifecycle: Lifecycle,
    limits: HttpLimits | None = None,
    open_metrics: bool = False,
    more_routes: Sequence[BaseRoute] = (),
) -> ASGIApp:
    """Serves once ``lifecycle`` is ready. ``more_routes`` are other faces, behind the same guard and auth."""
    limits = limits or HttpLimits()
    probes = Probes(lifecycle, meter.render, open_metrics)
    rpc = RpcEndpoint(dispatcher, lifecycle, body.ByteBudget(limits.rpc_bodies), limits.rpc_body, limits.pace)
    blob = BlobEndpoint(blobs, meter, lifecycle, limits.blob, limits.pace)
    skill = SkillEndpoint(skills, meter, lifecycle, limits.bundle, limits.pace)
    open_paths = OPEN_PATHS | ({"/metrics"} if open_metrics else set())
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
            *more_routes,
        ],
        redirect_slashes=False,
        default=_nothing_here,
    )
    authenticated = Authentication(router, lifecycle, authenticator, open_paths)
    return Edge(Guard(authenticated, hosts), meter.response)


class Endpoint:
    """Tells Starlette that a function is an ASGI application, which checks the HTTP method itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


async def _nothing_here(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise NotFound("there is nothing at this path")
