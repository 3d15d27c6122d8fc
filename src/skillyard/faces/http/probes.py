"""``/healthz``, ``/readyz`` and ``/metrics``."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from skillyard.domain.principal import Scope as Right
from skillyard.faces.http.auth import principal_of
from skillyard.faces.http.errors import MethodNotAllowed
from skillyard.faces.http.lifecycle import Lifecycle, Phase
from skillyard.faces.http.replies import reply
from skillyard.faces.rpc.wire import dumps

METRICS_KIND = "text/plain; version=0.0.4; charset=utf-8"


class Probes:
    """``render`` gives the metrics in Prometheus' text format; ``open_metrics`` shows them to anybody."""

    def __init__(self, lifecycle: Lifecycle, render: Callable[[], bytes], open_metrics: bool = False) -> None:
        self._lifecycle = lifecycle
        self._render = render
        self._open_metrics = open_metrics

    async def healthz(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """The process answers. Nothing more."""
        _check_get(scope)
        await reply(send, 200, dumps({"status": "ok"}))

    async def readyz(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answers 200 while the backend's probe holds and all processes live, else 503 with a reason."""
        _check_get(scope)
        dead = dict(self._lifecycle.dead())
        ready = self._lifecycle.phase is Phase.READY and not dead
        status = "not ready" if dead and self._lifecycle.phase is Phase.READY else str(self._lifecycle.phase)
        content = {"status": status, **self._lifecycle.facts, **({"dead": dead} if dead else {})}
        await reply(send, 200 if ready else 503, dumps(content))

    async def metrics(self, scope: Scope, _receive: Receive, send: Send) -> None:
        _check_get(scope)
        if not self._open_metrics:
            principal_of(scope).require(Right.ADMIN)
        await reply(send, 200, self._render(), kind=METRICS_KIND)


def _check_get(scope: Scope) -> None:
    if scope["method"] not in ("GET", "HEAD"):
        raise MethodNotAllowed("GET", "HEAD")
