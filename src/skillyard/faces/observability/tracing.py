"""OpenTelemetry spans, when the operator configured an exporter; nothing at all otherwise."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer
from starlette.types import ASGIApp, Receive, Scope, Send

from skillyard._version import __version__
from skillyard.domain.errors import SkillyardError
from skillyard.domain.principal import Principal
from skillyard.domain.work.record import RunRecord, RunStatus
from skillyard.engine.observer import Event, RunEnded

Invoke = Callable[[Principal, str, dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]]


class TracingUnavailable(SkillyardError):
    """Spans were asked for and cannot be exported."""

    type = "TracingUnavailable"


def exporting_provider() -> Any:
    """Returns a tracer provider that sends to the collector of the environment's variables.

    The caller shuts it down. Raises TracingUnavailable when the ``otel`` extra is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise TracingUnavailable("spans are configured but not installed: pip install 'skillyard[otel]'") from None
    resource = Resource.create({"service.name": "skillyard", "service.version": __version__})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class Tracing:
    """Spans for calls and for the runs within them."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer: Tracer = provider.get_tracer("skillyard", __version__)

    def traced(self, invoke: Invoke) -> Invoke:
        """``invoke`` with a span round every call, named by its method."""

        async def call(principal: Principal, name: str, params: dict[str, Any]) -> dict[str, Any]:
            attributes = {"rpc.system": "jsonrpc", "rpc.method": name, "enduser.id": principal.name}
            with self._tracer.start_as_current_span(
                name, kind=SpanKind.SERVER, attributes=attributes, record_exception=False
            ):
                return await invoke(principal, name, params)

        return call

    def continuing(self, app: ASGIApp) -> ASGIApp:
        """Wraps ``app``; its spans lie below that of the request's ``traceparent`` (W3C)."""

        async def continued(scope: Scope, receive: Receive, send: Send) -> None:
            carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            token = context.attach(propagate.extract(carrier))
            try:
                await app(scope, receive, send)
            finally:
                context.detach(token)

        return continued

    def observe(self, event: Event, /) -> None:
        """Makes a span for each ended run, below the call that it was for."""
        if isinstance(event, RunEnded) and event.record.ended_at is not None:
            self._run(event.record, event.record.ended_at)

    def _run(self, record: RunRecord, ended_at: float) -> None:
        span = self._tracer.start_span("run", start_time=_ns(record.created_at), attributes=_facts(record))
        if record.status is RunStatus.FAILED:
            span.set_status(Status(StatusCode.ERROR, str(record.outcome)))
        span.end(_ns(ended_at))


def _facts(record: RunRecord) -> dict[str, str]:
    facts = {
        "skillyard.run_id": record.run_id,
        "skillyard.kind": str(record.kind),
        "skillyard.skill": record.skill,
        "skillyard.version": record.version,
        "skillyard.environment": record.environment,
        "skillyard.outcome": str(record.outcome),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _ns(seconds: float) -> int:
    return int(seconds * 1_000_000_000)
