"""``skillyard session`` against a scripted server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from click.testing import Result

from tests.unit.client.yardserver import YardServer

Cli = Callable[..., Result]
LIVE = {
    "session_id": "work", "project": "acme", "agent": "crawler", "principal": "ann", "state": "ready",
    "isolation": "native", "skills": [], "runs": 3, "run_id": None, "created_at": 1.0, "expires_at": 7200.0,
    "idle_at": 3600.0, "ended_at": None, "ended_by": "", "reason": "",
}  # fmt: skip
ENDED = {**LIVE, "state": "ended", "ended_at": 60.0, "ended_by": "idle", "reason": "nobody used it", "expires_at": None,
         "idle_at": None}  # fmt: skip


def asked(yard: YardServer, method: str) -> dict[str, Any]:
    return [params for name, params in yard.calls if name == method][-1]


def test_sessions_are_listed_with_their_ends(run: Cli, yard: YardServer) -> None:
    yard.methods["skills.sessions"] = lambda params: {"sessions": [LIVE, ENDED]}
    done = run("session", "list", "--ended", "--agent", "crawler")
    assert done.exit_code == 0
    assert asked(yard, "skills.sessions") == {"ended": True, "agent": "crawler"}
    _, live, ended = done.stdout.splitlines()
    assert "1970-01-01T01:00:00Z" in live
    assert "1970-01-01T00:01:00Z by idle" in ended
    assert "acme/crawler" in live


def test_a_session_is_ended(run: Cli, yard: YardServer) -> None:
    yard.methods["skills.end_session"] = lambda params: ENDED
    done = run("session", "end", "work", "--reason", "enough")
    assert (done.exit_code, "is ended" in done.stderr) == (0, True)
    assert asked(yard, "skills.end_session") == {"session_id": "work", "reason": "enough"}


def test_a_command_names_its_session(run: Cli, yard: YardServer) -> None:
    ran = {
        "status": "succeeded", "reason": "exit", "run_id": "run_1", "stdout": "", "stderr": "", "exit_code": 0,
        "stdout_truncated": False, "stderr_truncated": False, "error_message": "", "created_artifacts": [],
        "output_errors": [],
    }  # fmt: skip
    yard.methods["skills.run_cmd"] = lambda params: ran
    assert run("sh", "acme.notes", "--session", "work", "--", "ls").exit_code == 0
    assert asked(yard, "skills.run_cmd")["session_id"] == "work"
