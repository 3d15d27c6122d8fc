"""The brief beside the record of a run that outlives its server."""

from __future__ import annotations

import json

from skillyard.domain.principal import Principal, Scope
from skillyard.domain.work.record import RunKind, RunRecord, RunStatus
from skillyard.engine.runs.request import RunRequest
from skillyard.engine.runs.task_record import Brief

RECORD = RunRecord("run_1", RunKind.CODE, "ann", RunStatus.QUEUED, 1.0, project="crm")
ANN = Principal("ann", frozenset({Scope.RUN_CODE}), ("sales.*",), "crm", "crawler", ("crawler-*",), "bounded")


def test_a_later_server_has_the_principal_as_it_was() -> None:
    text = Brief(ANN, RunRequest(RunKind.CODE, code="1"), None, "none").encoded()
    assert Brief.decoded(text, RECORD).principal == ANN


def test_the_brief_of_an_earlier_skillyard_names_no_agent() -> None:
    stored = json.loads(Brief(ANN, RunRequest(RunKind.CODE, code="1"), None, "none").encoded())
    for name in ("agent", "agents", "profile"):
        del stored[name]
    principal = Brief.decoded(json.dumps(stored), RECORD).principal
    assert (principal.agent, principal.agents, principal.profile) == ("ann", (), None)
