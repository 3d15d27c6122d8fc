"""``skillyard verify`` as a user runs it: in process, and against a server with a poor token."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skillyard.server_process import ServerProcess

SOME = (
    "files-stores",
    "channel-identity",
    "syscalls-keyrings",
    "leftovers-files",
    "principals-scopes",
    "benign-threads",
)


def verify(*words: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "skillyard", "verify", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, stdin=subprocess.DEVNULL)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def only(*names: str) -> list[str]:
    return [word for name in names for word in ("--only", name)]


def report(*words: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(verify(*words, "--json", "-", code=code))
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("verify") / "data")
    server.start()
    yield server
    server.stop()


def token(server: ServerProcess, *scopes: str) -> str:
    command = [sys.executable, "-m", "skillyard", "token", "create", "verifier", "--scopes", ",".join(scopes)]
    command += ["--data-dir", str(server.data_dir), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    made: str = json.loads(done.stdout)["token"]
    return made


def test_a_table_and_a_report(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    text = verify(*only(*SOME), "--json", str(path))
    assert "5 contained, 1 works" in text
    told = json.loads(path.read_text())
    assert told["passed"]
    assert told["isolation"] == "native"
    assert {p["name"] for p in told["programs"]} == set(SOME)
    assert told["enforced"]["seccomp"] == "kernel"


def test_the_list_runs_nothing() -> None:
    listed = json.loads(verify("--list", "--json", "-"))
    assert len(listed) > 150
    assert all(program["tries"] for program in listed)
    assert "proc-init" in verify("--list", "--family", "proc")


def test_a_server_with_a_token_that_may_only_run_code(server: ServerProcess) -> None:
    poor = token(server, "run_code")
    told = report("--url", str(server.url), "--token", poor, *only(*SOME))
    verdicts = {p["name"]: (p["verdict"], p["why"]) for p in told["programs"]}
    assert verdicts["files-stores"] == ("not applicable", "needs a runtime in this process")
    assert verdicts["principals-scopes"][0] == "not applicable"
    assert verdicts["channel-identity"] == verdicts["syscalls-keyrings"] == ("contained", "")
    assert verdicts["benign-threads"] == ("works", "")


def test_a_jail_that_is_too_tight_fails(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[limits]\npids = 4\n")
    words = ["--data-dir", str(tmp_path), *only("benign-threads", "benign-text")]
    told = report(*words, code=1)
    assert {p["name"]: p["verdict"] for p in told["programs"]} == {
        "benign-threads": "too tight",
        "benign-text": "works",
    }
    assert not told["passed"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--only", "no-such-program"], 2, "none called 'no-such-program'"),
        (["--family", "nothing"], 2, "none called 'nothing'"),
        (["--url", "http://127.0.0.1:9"], 3, ""),
        (["--canary", "--url", "http://192.0.2.1:80", "--token", "x"], 2, "on another one"),
    ],
)
def test_what_cannot_be_done_is_said(words: list[str], code: int, said: str) -> None:
    assert said in verify(*words, code=code)
