"""Servers whose commands run at an OpenSandbox server: kill -9, sandboxes that somebody ends, a remote that is away.

The server of ours starts from the variables of a SkillFlaw ``.env`` alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.sandbox import opensandbox_ground
from tests.conformance.sandbox.oci_ground import BASE
from tests.conformance.sandbox.opensandbox_ground import API_KEY, PORT, OpenSandbox
from tests.crash.leftovers import until
from tests.crash.server import SMALL, Server
from tests.faces.server.test_parts import readiness

pytestmark = [pytest.mark.timeout(300)]
SKILL = "skills.protocol.guide"
THEIRS = "SKILLFLAW_SKILL_SANDBOX_"


ENV = """\
SKILLFLAW_SKILL_SANDBOX_OPENSANDBOX_DOMAIN=localhost:8080
SKILLFLAW_SKILL_SANDBOX_OPENSANDBOX_PROTOCOL=http
SKILLFLAW_SKILL_SANDBOX_OPENSANDBOX_API_KEY=
SKILLFLAW_SKILL_SANDBOX_OPENSANDBOX_USE_SERVER_PROXY=false
SKILLFLAW_SKILL_SANDBOX_OPENSANDBOX_REQUEST_TIMEOUT_SECONDS=600
SKILLFLAW_SKILL_SANDBOX_CPUS=1.0
SKILLFLAW_SKILL_SANDBOX_MEMORY_MB=512
SKILLFLAW_SKILL_SANDBOX_PIDS_LIMIT=256
SKILLFLAW_SKILL_SANDBOX_TIMEOUT_SECONDS=60
SKILLFLAW_SKILL_SANDBOX_NETWORK=none
SKILLFLAW_SKILL_SANDBOX_READ_ONLY_ROOT=true
SKILLFLAW_SKILL_SANDBOX_TMPFS_ENABLED=true
SKILLFLAW_SKILL_SANDBOX_WORKSPACE_ACCESS=rw
SKILLFLAW_SKILL_SANDBOX_ENV_ALLOWLIST=[]
SKILLFLAW_MCP_SANDBOX_BASE_DIR=~/.skillflaw/mcp-sandboxes
SKILLFLAW_MCP_SANDBOX_PYTHON_IMAGE=ghcr.io/example/python:v1
SKILLFLAW_MCP_SANDBOX_TYPESCRIPT_IMAGE=ghcr.io/example/typescript:v1
"""
"""A ``.env`` of SkillFlaw."""


def env_of(remote: OpenSandbox, key: str = API_KEY, domain: str = "") -> str:
    """The ``.env`` with the server's own address, key and images."""
    text = ENV.replace("localhost:8080", domain or f"{remote.address}:{PORT}").replace("API_KEY=\n", f"API_KEY={key}\n")
    return re.sub("ghcr.io/.*", BASE, text)


def _sourced(place: Path, text: str) -> dict[str, str]:
    """The variables of a ``.env``, as a shell takes them."""
    (place / ".env").write_text(text)
    told = subprocess.run(
        ["bash", "-c", "set -a; . ./.env; env -0"], cwd=place, env={"HOME": "/nobody"}, capture_output=True, check=True
    ).stdout.decode()
    found = dict(line.split("=", 1) for line in told.split("\0") if "=" in line)
    return {name: value for name, value in found.items() if name.startswith("SKILLFLAW_")}


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSandbox]:
    with opensandbox_ground.open_sandbox(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def serve(remote: OpenSandbox, tmp_path: Path) -> Iterator[Callable[[], Server]]:
    """Starts servers on one data directory; at the end the remote holds no sandbox."""
    variables: dict[str, Any] = _sourced(tmp_path, env_of(remote))
    yield lambda: Server(tmp_path / "data", **variables)
    until(lambda: remote.containers() == [], 60, "the remote holds no sandbox")


def test_a_command_runs_from_the_env_of_skillflaw(serve: Callable[[], Server], remote: OpenSandbox) -> None:
    with serve() as server, server.client() as client:
        told = client.run_cmd(SKILL, "id -u; head -1 SKILL.md", limits=SMALL)
        assert told["status"] == "succeeded", told
        assert told["isolation"] == "opensandbox"
        uid, first = told["stdout"].split()
        assert int(uid) >= 1 << 20
        assert first == "---"
        assert remote.containers() == []
        chosen = f"policy.isolation = 'opensandbox', since the variable {THEIRS}OPENSANDBOX_DOMAIN is set"
        until(lambda: "SKILLFLAW_MCP_SANDBOX_BASE_DIR" in server.log(), 60, "the last remark is there")
        log = server.log()
        for said in (chosen, f"limits.cpus = 1.0 by {THEIRS}CPUS", f"limits.pids = 256 by {THEIRS}PIDS_LIMIT"):
            assert said in log
        assert f"by {THEIRS}READ_ONLY_ROOT" in log
        assert API_KEY not in log


def test_doctor_answers_each_point_of_the_list(remote: OpenSandbox, tmp_path: Path) -> None:
    # Of all that takes a sandbox there is one look.
    status, said = _doctor(tmp_path, env_of(remote).replace("ALLOWLIST=[]", 'ALLOWLIST=["LD_PRELOAD"]'))
    assert status == 0, said
    assert "runs do not get" in said
    assert f"server: http://{remote.address}:{PORT}" in said
    assert f"since the variable {THEIRS}OPENSANDBOX_DOMAIN is set" in said
    assert f"opensandbox.api_key = … by {THEIRS}OPENSANDBOX_API_KEY" in said
    assert "languages: bash, python" in said
    assert f"image_typescript: {BASE} lacks the interpreter of typescript" in said
    assert f"limits.memory_mb = 512 by {THEIRS}MEMORY_MB" in said
    assert API_KEY not in said
    status, said = _doctor(tmp_path, env_of(remote, key="key-of-somebody-else"))
    assert status == 1
    assert "refuses the API key" in said
    assert "key-of-somebody-else" not in said
    status, said = _doctor(tmp_path, env_of(remote, domain=f"{remote.address}:9"))
    assert status == 1
    assert f"the server {remote.address}:9 does not answer" in said
    status, said = _doctor(tmp_path, env_of(remote).replace("READ_ONLY_ROOT=true", "READ_ONLY_ROOT=false"))
    assert status != 0
    assert f"{THEIRS}READ_ONLY_ROOT" in said
    assert remote.containers() == []


def _doctor(place: Path, text: str) -> tuple[int, str]:
    (place / ".env").write_text(text)
    variables = {**os.environ, "LD_PRELOAD": "", "SKILLYARD_DATA_DIR": str(place / "data")}
    command = [sys.executable, "-m", "skillyard", "--env-file", str(place / ".env"), "doctor"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=240)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_tasks_go_on_in_the_next_server_and_one_that_somebody_ends_is_lost(
    serve: Callable[[], Server], remote: OpenSandbox
) -> None:
    with serve() as first:
        with first.client() as client:
            ended = client.run_cmd_async(SKILL, "echo begun; sleep 1000", limits=SMALL)
            until(partial(_said, client, ended, "begun"), 60, "the first works")
            theirs = remote.containers()
            task = client.run_cmd_async(SKILL, "echo begun; sleep 3; echo end", limits=SMALL)
            until(partial(_said, client, task, "begun"), 60, "both work")
        before = remote.containers()
        first.kill()
    with serve() as second, second.client() as client:
        # The skill was used twice, so that a snapshot with it may have been in the making.
        assert set(theirs) <= set(remote.containers()) <= set(before)
        told = client.task_watch(task["task_id"], timeout_sec=60)
        assert (told["status"], told["stdout_tail"]) == ("succeeded", "begun\nend\n"), told
        for name in theirs:
            remote.docker("rm", "-f", name)
        told = client.task_watch(ended["task_id"], timeout_sec=90)
        assert (told["status"], told["reason"]) == ("failed", "lost"), told


def test_tasks_outlive_a_remote_that_is_away(serve: Callable[[], Server], remote: OpenSandbox) -> None:
    """A server of ours goes on without it, and the next one starts without it, and waits."""
    with serve() as server, server.client() as client:
        over = client.run_cmd_async(SKILL, "echo begun; sleep 2; echo end", limits=SMALL)
        until(partial(_said, client, over, "begun"), 60, "it works")
        task = client.run_cmd_async(SKILL, "echo begun; sleep 6; echo end", limits=SMALL)
        until(partial(_said, client, task, "begun"), 60, "both work")
        remote.stop()
        try:
            refused = client.run_cmd(SKILL, "true", limits=SMALL)
        except Exception as error:  # noqa: BLE001 - the form of the refusal is not the point, its words are
            refused = {"status": "refused", "error": str(error)}
        assert refused["status"] != "succeeded"
        assert "does not answer" in str(refused), refused
        told = client.task_watch(over["task_id"], timeout_sec=60)
        assert (told["status"], told["stdout_tail"]) == ("succeeded", "begun\nend\n"), told
        server.kill()
    with serve() as server, server.client() as client:
        until(lambda: "opensandbox" in str(readiness(server)[1]["dead"]), 60, "the server says that it is away")
        remote.start()
        until(lambda: readiness(server)[0] == 200, 60, "it is back")
        told = client.task_watch(task["task_id"], timeout_sec=60)
        assert (told["status"], told["stdout_tail"]) == ("succeeded", "begun\nend\n"), told


@pytest.mark.long
def test_a_docker_that_is_started_anew_ends_what_ran_there(serve: Callable[[], Server], remote: OpenSandbox) -> None:
    with serve() as server, server.client() as client:
        task = client.run_cmd_async(SKILL, "echo begun; sleep 1000", limits=SMALL)
        until(partial(_said, client, task, "begun"), 60, "it works")
        remote.docker.stop()
        remote.docker.start()
        told = client.task_watch(task["task_id"], timeout_sec=120)
        assert (told["status"], told["reason"]) == ("failed", "lost"), told
        until(lambda: remote.containers() == [], 60, "nothing of it is left")
        again = client.run_cmd(SKILL, "echo again", limits=SMALL)
        assert (again["status"], again["stdout"]) == ("succeeded", "again\n"), again


@pytest.mark.long
def test_a_server_that_is_stopped_when_the_remote_is_back_leaves_nothing(
    serve: Callable[[], Server], remote: OpenSandbox
) -> None:
    """A sandbox that could not be ended is ended at the stop, and so is one that is being made then."""
    with serve() as server, server.client() as client:
        task = client.run_cmd_async(SKILL, "echo begun; sleep 2; echo end", limits=SMALL)
        until(partial(_said, client, task, "begun"), 60, "it works")
        remote.stop()
        told = client.task_watch(task["task_id"], timeout_sec=60)
        assert (told["status"], told["stdout_tail"]) == ("succeeded", "begun\nend\n"), told
        until(lambda: "fault" in server.log(), 60, "its sandbox could not be ended")
        left = remote.containers()
        assert left
        remote.start()
        until(lambda: set(remote.containers()) > set(left), 60, "the probe has a sandbox made")


def _said(client: Any, task: dict[str, Any], word: str) -> bool:
    return word in str(client.task_status(task_id=task["task_id"])["stdout_tail"])
