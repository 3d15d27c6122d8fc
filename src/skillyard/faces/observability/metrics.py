"""Prometheus metrics. Every label has a fixed, small set of values: no id, no skill, no principal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from skillyard._version import __version__
from skillyard.engine.observer import (
    ApprovalChanged,
    CatalogueChanged,
    EnvironmentFailed,
    EnvironmentInstalled,
    Event,
    Fault,
    LeaseLost,
    NetworkUsed,
    PartLost,
    PartRestarted,
    Recovered,
    RunEnded,
    RunRefused,
    RunResumed,
    RunStarted,
    Swept,
)

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
PARTS = ("server", "keeper", "gate")
"""The processes that every server has; other backends bring keepers of their own."""
PATHS = frozenset({"/rpc", "/blobs", "/skills", "/healthz", "/readyz", "/metrics"})


class Metrics:
    """One server's metrics, in a registry of their own."""

    def __init__(self, methods: Iterable[str]) -> None:
        registry = self._registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        Info("skillyard_build", "What runs here.", registry=registry).info({"version": __version__})
        self._methods = frozenset(methods)
        self._calls = Counter("skillyard_rpc_calls", "JSON-RPC calls.", ["method", "outcome"], registry=registry)
        self._call_seconds = Histogram(
            "skillyard_rpc_seconds", "What callers waited.", ["method"], buckets=SECONDS, registry=registry
        )
        self._responses = Counter("skillyard_http_responses", "HTTP responses.", ["path", "status"], registry=registry)
        self._blob_bytes = Counter(
            "skillyard_blob_transfer_bytes",
            "Bytes of blobs and bundles that went over HTTP.",
            ["direction"],
            registry=registry,
        )
        self._runs = Counter("skillyard_runs", "Ended runs.", ["kind", "status", "outcome"], registry=registry)
        self._refused = Counter("skillyard_runs_refused", "Runs turned away.", ["kind", "error"], registry=registry)
        self._run_seconds = Histogram(
            "skillyard_run_seconds",
            "From request to result.",
            ["kind"],
            buckets=SECONDS,
            registry=registry,
        )
        self._queue_seconds = Histogram(
            "skillyard_run_queue_seconds", "Spent waiting for a place.", buckets=SECONDS, registry=registry
        )
        self._create_seconds = Histogram(
            "skillyard_sandbox_create_seconds", "Spent making a sandbox.", buckets=SECONDS, registry=registry
        )
        self._held = Gauge(
            "skillyard_backend_sandboxes",
            "Sandboxes of this server at an engine or a provider.",
            ["isolation", "state"],
            registry=registry,
        )
        self._connections = Counter(
            "skillyard_network_connections", "Connections that runs tried.", ["decision"], registry=registry
        )
        self._network_bytes = Counter(
            "skillyard_network_bytes", "Bytes of the connections of runs.", ["direction"], registry=registry
        )
        self._environments = Counter(
            "skillyard_environment_installs", "Environments installed.", ["result"], registry=registry
        )
        self._catalogue = Counter(
            "skillyard_catalogue_changes",
            "Versions published, withdrawn, pinned, approved …",
            ["act"],
            registry=registry,
        )
        self._faults = Counter("skillyard_faults", "Faults of our own machinery.", ["part"], registry=registry)
        self._restarts = Counter(
            "skillyard_part_restarts", "Processes that were started again after they died.", ["part"], registry=registry
        )
        for part in PARTS:
            self._faults.labels(part)
            self._restarts.labels(part)
        self._lost = Counter("skillyard_lost_runs", "Runs that a dead server left unfinished.", registry=registry)
        self._resumed = Counter(
            "skillyard_resumed_runs", "Runs of a dead server that go on here.", ["status"], registry=registry
        )
        self._leases_lost = Counter(
            "skillyard_leases_lost", "Runs that this server stopped driving, and that go on.", registry=registry
        )
        self._swept = Counter("skillyard_swept", "Expired objects removed.", ["what"], registry=registry)

    def gauge(self, name: str, help: str, read: Callable[[], float]) -> None:
        """Adds a value that is read when it is asked for."""
        Gauge(f"skillyard_{name}", help, registry=self._registry).set_function(read)

    def sandboxes(self, isolation: str, read: Callable[[], Mapping[str, int]]) -> None:
        """Adds the sandboxes of an isolation by state, read when they are asked for."""
        for state in ("lent", "ready"):
            self._held.labels(isolation, state).set_function(partial(_number, read, state))

    def render(self) -> bytes:
        """Returns Prometheus' text format, version 0.0.4."""
        return generate_latest(self._registry)

    def call(self, method: str, outcome: str, seconds: float) -> None:
        method = method if method in self._methods else "unknown"
        self._calls.labels(method, outcome).inc()
        self._call_seconds.labels(method).observe(seconds)

    def response(self, path: str, status: int) -> None:
        self._responses.labels(_known(path), status).inc()

    def service(self, _path: str, status: int) -> None:
        """Counts an answer of a service that was asked by its host name."""
        self._responses.labels(_SERVICES, status).inc()

    def received(self, count: int) -> None:
        self._blob_bytes.labels("in").inc(count)

    def sent(self, count: int) -> None:
        self._blob_bytes.labels("out").inc(count)

    def observe(self, event: Event, /) -> None:
        """Counts an event of the engine."""
        match event:
            case RunStarted():
                self._queue_seconds.observe(event.queued_ms / 1000)
                self._create_seconds.observe(event.created_ms / 1000)
            case RunEnded():
                self._ended(event)
            case NetworkUsed():
                self._connections.labels("allowed").inc(event.allowed)
                self._connections.labels("refused").inc(event.refused)
                self._network_bytes.labels("sent").inc(event.sent_bytes)
                self._network_bytes.labels("received").inc(event.received_bytes)
            case RunRefused():
                self._refused.labels(event.kind, event.error).inc()
            case EnvironmentInstalled():
                self._environments.labels("installed").inc()
            case EnvironmentFailed():
                self._environments.labels("failed").inc()
            case CatalogueChanged() | ApprovalChanged():
                self._catalogue.labels(event.act).inc()
            case Recovered():
                self._lost.inc(event.lost_runs)
            case RunResumed():
                self._resumed.labels(event.status).inc()
            case LeaseLost():
                self._leases_lost.inc()
            case Swept():
                self._swept.labels("blobs").inc(event.blobs)
                self._swept.labels("records").inc(event.records)
                self._swept.labels("environments").inc(event.environments)
            case Fault():
                self._faults.labels(event.part).inc()
            case PartLost():
                self._faults.labels(event.part).inc()
            case PartRestarted():
                self._restarts.labels(event.part).inc()

    def _ended(self, event: RunEnded) -> None:
        record = event.record
        outcome = str(record.outcome) if record.outcome else "none"
        self._runs.labels(str(record.kind), str(record.status), outcome).inc()
        self._run_seconds.labels(str(record.kind)).observe(event.total_ms / 1000)


_SERVICES = "/services/{task_id}/{port}"


def _number(read: Callable[[], Mapping[str, int]], state: str) -> float:
    return read()[state]


def _known(path: str) -> str:
    if path in PATHS:
        return path
    if path.startswith("/blobs/"):
        return "/blobs/{blob_id}"
    if path.startswith("/services/"):
        return _SERVICES
    return "/skills/{name}/{version}" if path.startswith("/skills/") else "other"
