"""``skillyard sh --expose`` and ``skillyard service`` against a scripted server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from click.testing import Result

from tests.faces.cli.test_tasks import TOLD, asked, paged
from tests.unit.client.yardserver import YardServer

Cli = Callable[..., Result]
ENDPOINT = {
    "port": 8000,
    "path": "/services/run_1/8000/",
    "host": "8000-1.localhost",
    "url": "http://8000-1.localhost/",
}


def test_an_exposed_port_makes_a_service(run: Cli, yard: YardServer) -> None:
    started = {"task_id": "run_1", "status": "queued", "exposed_endpoints": [ENDPOINT]}
    yard.methods["skills.run_service"] = lambda params: started
    options = ("--expose", "8000", "--expose", "8001", "--ready", "^on", "--startup", "5", "--restart")
    done = run("sh", "a.b", *options, "--", "serve")
    assert (done.exit_code, done.stdout) == (0, "run_1\n")
    assert "skillyard service show run_1" in done.stderr
    assert asked(yard, "skills.run_service") == {
        "skill_name": "a.b", "command": "serve", "expose_ports": [8000, 8001], "ready_pattern": "^on",
        "startup_timeout_sec": 5.0, "restart": "on-failure",
    }  # fmt: skip
    run("sh", "a.b", "--expose", "1", "--", "serve")
    assert "restart" not in asked(yard, "skills.run_service")


def test_options_of_services_go_with_a_port(run: Cli) -> None:
    for options in (("--ready", "x"), ("--startup", "1"), ("--restart",)):
        refused = run("sh", "a.b", *options, "--", "x")
        assert (refused.exit_code, "go with --expose" in refused.stderr) == (2, True)
    assert run("sh", "a.b", "--expose", "0", "--", "x").exit_code == 2
    assert run("sh", "a.b", "--expose", "1", "--output", "x", "--save", "y", "--", "x").exit_code == 2


def test_services_are_listed_shown_opened_and_stopped(run: Cli, yard: YardServer) -> None:
    row = {"task_id": "run_1", "status": "running", "startup_ready": True, "skill_name": "a.b", "created_at": 1.0}
    yard.methods["skills.tasks"] = lambda params: {"tasks": [{**row, "reason": ""}], "next_cursor": None}
    assert "run_1  running  yes    a.b" in run("service", "list").stdout
    assert asked(yard, "skills.tasks") == {"limit": 50, "mode": "service"}
    health = {"ready": True, "restart": "on-failure", "restarts": 2, "exit_code": 3}
    yard.methods["skills.task_status"] = lambda params: {**TOLD, "exposed_endpoints": [ENDPOINT], "service": health}
    shown = run("service", "show", "run_1").stdout
    assert "http://8000-1.localhost/" in shown
    assert shown.index("end") < shown.index("/services/run_1/8000/")
    url = "http://8000-1.localhost/x?skillyard_ticket=t"
    opened: dict[str, Any] = {"url": url, "expires_at": 60.0, "task_id": "run_1", "port": 8000}
    yard.methods["skills.open_service"] = lambda params: opened
    done = run("service", "open", "run_1", "8000", "--path", "/x")
    assert (done.stdout, "until 1970-01-01T00:01:00Z" in done.stderr) == (url + "\n", True)
    assert asked(yard, "skills.open_service") == {"task_id": "run_1", "port": 8000, "path": "/x"}
    yard.methods["skills.task_cancel"] = lambda params: {"task_id": "run_1", "status": "canceled", "canceled": True}
    assert run("service", "stop", "run_1").stderr == "run_1 canceled\n"


def test_logs_are_those_of_the_task(run: Cli, yard: YardServer) -> None:
    paged(yard)
    assert run("service", "logs", "run_1").stdout == "ac\n"
