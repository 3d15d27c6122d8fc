"""``skillyard run --detach``, and the commands that wait for a run, follow it and find it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.faces.cli.conftest import Cli
from tests.faces.cli.test_runs import asked
from tests.unit.client.yardserver import YardServer, completed


def live(status: str = "queued") -> dict[str, Any]:
    return {"status": status, "run_id": "run_1", "summary": "the run waits for its turn", "output_blobs": []}


def test_a_detached_run_prints_its_id(run: Cli, yard: YardServer) -> None:
    yard.methods["execute_skill"] = lambda params: live()
    result = run("run", "a.b", "--detach", "--label", "team=crm", "--label", "note=a=b")
    assert (result.exit_code, result.stdout) == (0, "run_1\n")
    assert result.stderr == "run_1 queued: skillyard runs wait run_1\n"
    assert (asked(yard)["detach"], asked(yard)["labels"]) == (True, {"team": "crm", "note": "a=b"})
    assert json.loads(run("run", "a.b", "--detach", "--json").stdout) == live()
    assert run("run", "a.b").exit_code == 0
    assert "detach" not in asked(yard)


@pytest.mark.parametrize("options", [("--detach", "--save", "x"), ("--label", "team"), ("--label", "=x")])
def test_options_of_detached_runs_are_checked(run: Cli, yard: YardServer, options: tuple[str, ...]) -> None:
    yard.methods["execute_skill"] = lambda params: live()
    assert run("run", "a.b", *options).exit_code == 2
    assert yard.calls == []


def test_runs_wait_asks_again_until_the_end(run: Cli, yard: YardServer) -> None:
    answers = iter([{"ended": False, "run": live()}, {"ended": True, "run": completed({"n": 1})}])
    yard.methods["runs.wait"] = lambda params: next(answers)
    result = run("runs", "wait", "run_1")
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"n": 1})
    assert [params["wait_ms"] for _, params in yard.calls] == [30_000, 30_000]


def test_runs_wait_says_when_its_time_is_over(run: Cli, yard: YardServer) -> None:
    yard.methods["runs.wait"] = lambda params: {"ended": False, "run": live("running")}
    result = run("runs", "wait", "run_1", "--timeout", "1")
    assert (result.exit_code, result.stdout) == (5, "run_1\n")
    assert [params["wait_ms"] <= 1000 for _, params in yard.calls] == [True]


def test_runs_wait_ends_as_the_run_did(run: Cli, yard: YardServer) -> None:
    failed = {**live("failed"), "summary": "no", "error": {"type": "ValueError", "message": "no"}}
    yard.methods["runs.wait"] = lambda params: {"ended": True, "run": failed}
    assert run("runs", "wait", "run_1").exit_code == 1


@pytest.mark.parametrize(
    ("outcome", "error", "told"),
    [
        (
            "cancelled",
            {"type": "Cancelled", "message": "the run was cancelled: enough"},
            "the run was cancelled: enough",
        ),
        ("exit", {"type": "SystemExit", "message": "the command ended with 3"}, "the command ended with 3"),
        (None, {"type": "SandboxError", "message": "no place is left"}, "no place is left"),
        ("exit", {"type": "ValueError", "message": "no"}, "ValueError: no"),
    ],
)
def test_runs_wait_tells_the_sentence_of_an_error(
    run: Cli, yard: YardServer, outcome: str | None, error: dict[str, str], told: str
) -> None:
    """The type stands before it where the code raised it."""
    summary = f"{error['type']}: {error['message']}"
    failed = {**live("failed"), "summary": summary, "error": error, "outcome": outcome}
    yard.methods["runs.wait"] = lambda params: {"ended": True, "run": failed}
    assert run("runs", "wait", "run_1").stderr == f"run_1 failed: {told}\n"


def test_runs_events_follow_to_the_end(run: Cli, yard: YardServer) -> None:
    told = [
        {"seq": 1, "at": 0.0, "kind": "queued", "data": {}},
        {"seq": 2, "at": 1.0, "kind": "failed", "data": {"outcome": "lost", "reason": ""}},
    ]

    def page(params: dict[str, Any]) -> dict[str, Any]:
        after = params["after"]
        return {"events": told[after : after + 1], "next_after": after + 1, "complete": after == 1}

    yard.methods["runs.events"] = page
    result = run("runs", "events", "run_1", "--follow")
    assert [line.split(" ", 1)[0] for line in result.stdout.splitlines()] == ["1", "2"]
    assert result.stdout.endswith("failed outcome=lost\n")
    assert [params["wait_ms"] for _, params in yard.calls] == [20_000, 20_000]
    assert json.loads(run("runs", "events", "run_1", "--follow", "--json").stdout) == told


def test_runs_list_by_labels(run: Cli, yard: YardServer) -> None:
    yard.methods["runs.list"] = lambda params: {"runs": [], "next_cursor": None}
    assert run("runs", "list", "--label", "team=crm", "--status", "queued").exit_code == 0
    assert (asked(yard)["labels"], asked(yard)["status"]) == ({"team": "crm"}, "queued")
    assert run("runs", "list").exit_code == 0
    assert "labels" not in asked(yard)
