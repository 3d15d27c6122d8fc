"""Logs, metrics and spans."""

from __future__ import annotations

import io
import json
import logging
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from skillyard.domain.work.record import Outcome, RunKind, RunRecord, RunStatus
from skillyard.engine import observer
from skillyard.faces.observability.logs import QUEUE, TOGETHER_S, fan_out, log_event, logging_to
from skillyard.faces.observability.metrics import Metrics
from skillyard.faces.observability.tracing import Tracing
from skillyard.faces.serve import wanted
from tests.faces.support import ROOT

RECORD = RunRecord(
    run_id="run_1",
    kind=RunKind.CODE,
    principal="root",
    status=RunStatus.FAILED,
    created_at=100.0,
    ended_at=102.0,
    outcome=Outcome.TIMEOUT,
    output={"password": "hunter2"},
    logs_preview="hunter2",
    error={"type": "TimeoutError", "message": "hunter2"},
)
EVENTS: list[observer.Event] = [
    observer.RunQueued("run_1", "root", 3),
    observer.RunRefused("run_code", "root", "Busy"),
    observer.RunStarted("run_1", "run_code", "root", None, 1.5, 2.5),
    observer.RunEnded(RECORD, 2000.0, 0),
    observer.SecretsGiven("run_1", "root", "a.b", ("API_KEY",)),
    observer.NetworkUsed("run_1", "root", "a.b", 3, 2, 100, 2000, ("y.com:443 refused: no skill rule allows y.com",)),
    observer.NetworkChanged("run_1", "root", "live", ("x.com",)),
    observer.EnvironmentInstalling("d", ("numpy",)),
    observer.EnvironmentInstalled("w", "d", 3.0),
    observer.EnvironmentFailed("d", "no network"),
    observer.ModulesAhead("data", "d", ("numpy",), {"x": "it starts threads"}, 30 << 20),
    observer.ApprovalChanged("approved", "a.b", "1.0.0", "d", "root", "read it"),
    observer.CatalogueChanged("withdrawn", "a.b", "1.0.0", "d", "root", "crm"),
    observer.Recovered(2, 1),
    observer.Swept(4, 5),
    observer.Fault("collect", RuntimeError("boom"), "run_1"),
]


def logged(emit: Any, level: str = "info") -> list[dict[str, Any]]:
    stream = io.StringIO()
    with logging_to(stream, level=level):
        emit()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_every_event_is_a_line_of_json_with_its_run() -> None:
    def emit() -> None:
        for event in EVENTS:
            log_event(event)

    lines = logged(emit, "debug")
    assert [line["event"] for line in lines][:5] == [
        "run queued",
        "run refused",
        "run started",
        "run ended",
        "secrets given",
    ]
    assert len(lines) == len(EVENTS)
    assert [line.get("run_id") for line in lines][2:5] == ["run_1"] * 3
    assert {line["level"] for line in lines} == {"debug", "info", "warning", "error"}
    assert all(line["timestamp"].endswith("+00:00") for line in lines)


def test_what_ran_and_how_it_ended_is_logged_but_nothing_that_it_said() -> None:
    (line,) = logged(lambda: log_event(EVENTS[3]))
    assert (line["outcome"], line["status"], line["total_ms"]) == ("timeout", "failed", 2000.0)
    assert "hunter2" not in json.dumps(line)
    refused = replace(RECORD, outcome=None, error={"type": "PolicyRefused", "message": "hunter2"})
    (line,) = logged(lambda: log_event(observer.RunEnded(refused, 1.0, 0)))
    assert (line["outcome"], line["refused"]) == (None, "PolicyRefused")
    assert "hunter2" not in json.dumps(line)


def test_refused_connections_are_worth_a_warning() -> None:
    quiet = observer.NetworkUsed("run_1", "root", None, 3, 0, 0, 0)

    def emit() -> None:
        log_event(EVENTS[5])
        log_event(quiet)

    (line,) = logged(emit)
    assert (line["level"], line["event"], line["refused"]) == ("warning", "network used", 2)
    assert line["refusals"] == ["y.com:443 refused: no skill rule allows y.com"]


def test_a_fault_shows_where_and_no_values() -> None:
    def emit() -> None:
        token = "s3cr3t-value"
        try:
            raise RuntimeError(f"boom {len(token)}")
        except RuntimeError as exc:
            log_event(observer.Fault("collect", exc))

    (line,) = logged(emit)
    assert (line["error_type"], line["error"], line["where"]) == ("RuntimeError", "boom 12", "collect")
    assert "test_observability.py" in line["trace"][0]
    assert "s3cr3t-value" not in json.dumps(line)


@pytest.mark.parametrize("key", ["authorization", "token", "api_key", "client_secret", "Password", "cookie"])
def test_credentials_are_redacted_by_name(key: str) -> None:
    (line,) = logged(lambda: logging.getLogger("x").info("hello", extra={key: "hunter2"}))
    assert line[key] == "[redacted]"


def test_bearer_tokens_are_redacted_anywhere() -> None:
    (line,) = logged(lambda: logging.getLogger("x").info("got %s", "Authorization: Bearer abc.def"))
    assert line["event"] == "got Authorization: Bearer [redacted]"


def test_a_log_that_nobody_reads_blocks_nobody_and_counts_what_is_lost() -> None:
    import threading

    class Stuck(io.StringIO):
        def __init__(self) -> None:
            super().__init__()
            self.open = threading.Event()

        def write(self, text: str) -> int:
            self.open.wait(10)
            return super().write(text)

    stuck = Stuck()
    with logging_to(stuck):
        for n in range(QUEUE + 50):
            logging.getLogger("x").info("line %d", n)
        stuck.open.set()
        while len(stuck.getvalue()) < 1000:
            threading.Event().wait(0.005)
        logging.getLogger("x").info("the last")
    last = json.loads(stuck.getvalue().splitlines()[-1])
    assert last["event"] == "the last"
    assert 45 <= last["dropped_before"] <= 50


def test_records_are_written_though_none_comes_behind_them() -> None:
    import threading

    class Lines(io.StringIO):
        def __init__(self) -> None:
            super().__init__()
            self.written = threading.Event()

        def write(self, text: str) -> int:
            self.written.set()
            return super().write(text)

    lines = Lines()
    with logging_to(lines):
        for n in range(3):  # the writer looks for the second by itself, and sleeps before the third
            lines.written.clear()
            if n == 2:
                threading.Event().wait(3 * TOGETHER_S)
            logging.getLogger("x").info("line %d", n)
            assert lines.written.wait(10)
    assert len(lines.getvalue().splitlines()) == 3


def test_metrics_have_fixed_labels() -> None:
    metrics = Metrics(["list_skills"])
    for event in EVENTS:
        metrics.observe(event)
    metrics.call("list_skills", "ok", 0.01)
    metrics.call("x" * 100, "MethodNotFound", 0.01)
    metrics.response("/blobs/blob:abc", 200)
    metrics.response("/skills/a.b/1.0.0", 200)
    metrics.response("/../../etc", 404)
    metrics.gauge("runs_waiting", "Waiting.", lambda: 7)
    metrics.sandboxes("oci", lambda: {"lent": 3, "ready": 4})
    text = metrics.render().decode()
    for line in (
        'skillyard_runs_total{kind="run_code",outcome="timeout",status="failed"} 1.0',
        'skillyard_runs_refused_total{error="Busy",kind="run_code"} 1.0',
        'skillyard_rpc_calls_total{method="unknown",outcome="MethodNotFound"} 1.0',
        'skillyard_http_responses_total{path="/blobs/{blob_id}",status="200"} 1.0',
        'skillyard_http_responses_total{path="other",status="404"} 1.0',
        'skillyard_http_responses_total{path="/skills/{name}/{version}",status="200"} 1.0',
        'skillyard_catalogue_changes_total{act="withdrawn"} 1.0',
        'skillyard_network_connections_total{decision="refused"} 2.0',
        'skillyard_network_bytes_total{direction="received"} 2000.0',
        "skillyard_runs_waiting 7.0",
        'skillyard_backend_sandboxes{isolation="oci",state="ready"} 4.0',
        "skillyard_lost_runs_total 2.0",
        'skillyard_faults_total{part="server"} 1.0',
    ):
        assert line in text
    assert "run_1" not in text
    assert "root" not in text


def test_every_observer_is_told() -> None:
    seen: list[observer.Event] = []
    fan_out(seen.append, seen.append)(EVENTS[0])
    assert seen == [EVENTS[0]] * 2


@pytest.mark.anyio
async def test_a_run_is_a_span_below_its_call_below_its_caller() -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    tracing = Tracing(provider)

    async def invoke(_principal: Any, _name: str, _params: dict[str, Any]) -> dict[str, Any]:
        tracing.observe(EVENTS[3])
        return {}

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        await tracing.traced(invoke)(ROOT, "run_code", {"code": "hunter2"})

    traceparent = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await tracing.continuing(app)({"type": "http", "headers": [(b"traceparent", traceparent)]}, None, None)  # type: ignore[arg-type]
    run, call = spans.get_finished_spans()
    assert (call.name, run.name) == ("run_code", "run")
    assert f"{call.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert run.parent is not None
    assert run.parent.span_id == call.context.span_id
    assert (run.start_time, run.end_time) == (100 * 10**9, 102 * 10**9)
    assert run.attributes is not None
    assert run.attributes["skillyard.outcome"] == "timeout"
    assert "hunter2" not in run.to_json() + call.to_json()


def test_spans_are_wanted_when_a_collector_is_named() -> None:
    named = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    assert wanted(named)
    assert not wanted({})
    assert not wanted(named | {"OTEL_SDK_DISABLED": "true"})
    assert not wanted(named | {"OTEL_TRACES_EXPORTER": "none"})
