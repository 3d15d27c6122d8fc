"""Cells and commands in sessions by the command line, against a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.leftovers import until
from tests.crash.server import Server
from tests.faces.server.test_cli import BOUND_S, Done, environ, skillyard

pytestmark = pytest.mark.timeout(300)
SKILL = "skills.protocol.guide"
HOLDS = "import time; time.sleep(60)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("cells") / "data") as server:
        yield server


def cell(server: Server, code: str, *options: str, session: str = "work") -> Done:
    return skillyard(server.data_dir, "exec", "-", "--session", session, *options, stdin=code)


def test_names_stay_until_a_restart(server: Server) -> None:
    assert cell(server, "n = 20").returncode == 0
    again = cell(server, "print('again'); n + 1")
    assert (again.returncode, json.loads(again.stdout)) == (0, {"result": 21})
    assert "again" in again.stderr
    assert "lost" not in again.stderr
    told = cell(server, "n", "--json")
    assert json.loads(told.stdout)["interpreter"] == {"state": "kept", "reason": "", "lost": ""}
    restarted = cell(server, "n", "--restart")
    assert (restarted.returncode, restarted.stdout) == (1, "")
    assert "NameError: name 'n' is not defined" in restarted.stderr
    assert "the names of earlier cells are lost: " in restarted.stderr


def test_a_crash_says_that_the_names_are_lost(server: Server) -> None:
    assert cell(server, "n = 1", session="crash").returncode == 0
    crashed = cell(server, "import os; os.kill(os.getpid(), 11)", session="crash")
    assert (crashed.returncode, crashed.stdout) == (1, "")
    assert "the names of earlier cells are lost: " in crashed.stderr
    after = cell(server, "'n' in dir()", session="crash")
    assert json.loads(after.stdout) == {"result": False}
    assert "the names of earlier cells are lost: " in after.stderr


def test_cells_and_commands_share_the_files_of_a_session(server: Server) -> None:
    assert cell(server, "open('/workspace/notes.txt', 'w').write('draft')", session="files").returncode == 0
    said = skillyard(server.data_dir, "sh", SKILL, "--session", "files", "--", "cat /workspace/notes.txt")
    assert (said.returncode, said.stdout) == (0, "draft")
    other = skillyard(server.data_dir, "sh", SKILL, "--session", "elsewhere", "--", "cat /workspace/notes.txt")
    assert other.returncode == 1


def test_a_busy_session_is_waited_for_as_long_as_asked(server: Server) -> None:
    argv = [sys.executable, "-m", "skillyard", "exec", "-", "--session", "busy"]
    with subprocess.Popen(argv, env=environ(server.data_dir), stdin=subprocess.PIPE, text=True) as holds:
        assert holds.stdin is not None
        holds.stdin.write(HOLDS)
        holds.stdin.close()
        until(lambda: _is_at_work(server, "busy"), BOUND_S, "the cell works")
        for refused in (
            cell(server, "1", "--wait", "0", session="busy"),
            skillyard(server.data_dir, "sh", SKILL, "--session", "busy", "--wait", "0.05", "--", "true"),
        ):
            assert (refused.returncode, refused.stdout) == (5, ""), refused.stderr
            assert "busy" in refused.stderr
        holds.terminate()
        waited = cell(server, "1 + 1", "--wait", "50", session="busy")
        assert (waited.returncode, json.loads(waited.stdout)) == (0, {"result": 2}), waited.stderr


def _is_at_work(server: Server, session: str) -> bool:
    with server.client() as client:
        rows = client.call("skills.sessions")["sessions"]
    return any(row["session_id"] == session and row["run_id"] for row in rows)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--detach",), "detach: "),
        (("--args", '{"a": 1}'), "args: "),
        (("--entrypoint", "f"), "entrypoint: "),
        (("--wait", "-1"), "--wait"),
    ],
)
def test_what_no_cell_has_is_refused_by_name(server: Server, options: tuple[str, ...], said: str) -> None:
    """A cell has a caller that hears its end: none goes on without this command."""
    refused = cell(server, "print('ran')", *options, session="refused")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert said in refused.stderr
    assert "ran" not in refused.stderr.split()
    with server.client() as client:
        assert all(row["session_id"] != "refused" for row in client.call("skills.sessions")["sessions"])


@pytest.mark.parametrize("option", [("--restart",), ("--wait", "1")])
def test_what_only_a_cell_has_is_refused_without_a_session(
    server: Server, option: tuple[str, ...], tmp_path: Path
) -> None:
    (source := tmp_path / "code.py").write_text("def main(args): return 1")
    refused = skillyard(server.data_dir, "exec", str(source), *option)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"{option[0].removeprefix('--')}" in refused.stderr
    assert "session" in refused.stderr
