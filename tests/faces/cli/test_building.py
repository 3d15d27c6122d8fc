"""What is shown of a build while somebody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from click.testing import Result

from skillyard.domain.errors import Forbidden
from skillyard.faces.cli.progress import BuildProgress, Look, running, said
from tests.unit.client.yardserver import YardServer


class Target:
    """Answers ``environments.show`` with one state after the other, and stays at the last."""

    def __init__(self, *states: str) -> None:
        self.states = list(states)
        self.asked: list[tuple[str, Mapping[str, Any] | None]] = []
        self.told = threading.Event()

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        self.asked.append((method, params))
        if self.states[0] == "forbidden":
            self.told.set()
            raise Forbidden("not you")
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if len(self.states) == 1 and state == self.states[0]:
            self.told.set()
        return {"environment": {"state": state, "line": "Downloading\x1b[31m numpy"}}


def waited(target: Target, asked: Mapping[str, Any] | None, *, quiet: bool = False) -> None:
    with running(target, asked, quiet=quiet, pauses_s=(0.001, 0.001)):  # type: ignore[arg-type]
        assert target.told.wait(10)


def test_each_state_is_told_once_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    target = Target("waiting", "resolving", "resolving", "installing", "ready")
    waited(target, {"skill": "a.b"})
    assert capsys.readouterr().err.splitlines() == [
        "environment: waiting",
        "environment: resolving",
        "environment: installing",
    ]
    assert set(map(str, target.asked)) == {str(("environments.show", {"skill": "a.b"}))}


def test_what_is_ready_is_asked_about_once_and_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    target = Target("ready")
    waited(target, {"environment": "data"})
    assert capsys.readouterr().err == ""
    assert len(target.asked) == 1


def test_who_may_not_look_is_not_bothered(capsys: pytest.CaptureFixture[str]) -> None:
    waited(Target("forbidden"), {"skill": "a.b"})
    assert capsys.readouterr().err == ""


def test_a_run_without_packages_asks_nothing() -> None:
    target = Target("ready")
    with running(target, None, quiet=False):  # type: ignore[arg-type]
        pass
    with running(target, {"skill": "a.b"}, quiet=True):  # type: ignore[arg-type]
        pass
    assert target.asked == []


def test_a_look_is_over_with_the_build() -> None:
    look = Look(Target("installing", "ready"), {})  # type: ignore[arg-type]
    assert look.line() == "environment installing: Downloading\\x1b[31m numpy"
    assert look.line() == ""
    assert look.over


def test_one_line_is_said_of_a_build() -> None:
    assert said({"state": "failed", "error": "one\ntwo"}) == "environment failed: one two"
    assert said({"state": "waiting", "line": ""}) == "environment waiting"


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with BuildProgress(quiet=True) as progress:
        progress.show({"state": "installing", "line": "x"})
    assert capsys.readouterr().err == ""


def test_environments_are_listed_with_their_names(run: Callable[..., Result], yard: YardServer) -> None:
    built = {"state": "ready", "digest": "d1", "requirements": ["numpy"], "size_bytes": 1024, "used_at": 0.0}
    yard.methods["environments.list"] = lambda params: {
        "named": [
            {"name": "base", "state": "ready", "digest": "", "requirements": []},
            {"name": "data", "state": "ready", "digest": "d1", "requirements": ["numpy"]},
            {"name": "plots", "state": "resolving", "digest": "", "requirements": ["matplotlib"]},
            {"name": "web", "state": "absent", "requirements": ["flask"]},
        ],
        "environments": [built, {**built, "digest": "d2", "requirements": ["six"]}],
        "builds": [{"state": "resolving", "digest": "", "requirements": ["matplotlib"], "line": ""}],
    }
    shown = run("environment", "list").stdout
    assert [" ".join(line.split()) for line in shown.splitlines()[1:]] == [
        "plots resolving matplotlib",
        "data d1 ready 1.0 KiB 1970-01-01T00:00:00Z numpy",
        "d2 ready 1.0 KiB 1970-01-01T00:00:00Z six",
        "base ready",
        "web absent flask",
    ]


def test_whoever_stops_waiting_for_a_server_is_told_that_it_goes_on(
    run: Callable[..., Result], yard: YardServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    at_work = {"environment": {"state": "resolving", "requirements": ["six"], "digest": "", "line": ""}}
    yard.methods["environments.build"] = lambda params: at_work
    monkeypatch.setattr("skillyard.faces.cli.commands.environment.time.sleep", interrupt)
    left = run("environment", "build", "--package", "six")
    assert (left.exit_code, "the server goes on with the build" in left.stderr) == (130, True)
