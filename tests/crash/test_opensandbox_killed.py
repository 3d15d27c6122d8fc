"""Servers whose commands run at an OpenSandbox server: kill -9, sandboxes that somebody ends, a remote that is away.

The server of ours starts from the variables of a SkillFlaw ``.env`` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.sandbox import opensandbox_ground
from tests.conformance.sandbox.oci_ground import IMAGE
from tests.conformance.sandbox.opensandbox_ground import API_KEY, PORT, OpenSandbox
from tests.crash.leftovers import until
from tests.crash.server import SMALL, Server
from tests.faces.server.test_parts import readiness

pytestmark = [pytest.mark.timeout(300)]
SKILL = "skills.protocol.guide"


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSandbox]:
    with opensandbox_ground.open_sandbox(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def serve(remote: OpenSandbox, tmp_path: Path) -> Iterator[Callable[[], Server]]:
    """Starts servers on one data directory; at the end the remote holds no sandbox."""
    theirs = "SKILLFLAW_SKILL_SANDBOX_"
    variables: dict[str, Any] = {
        f"{theirs}OPENSANDBOX_DOMAIN": f"{remote.address}:{PORT}",
        f"{theirs}OPENSANDBOX_PROTOCOL": "http",
        f"{theirs}OPENSANDBOX_API_KEY": API_KEY,
        f"{theirs}OPENSANDBOX_USE_SERVER_PROXY": "false",
        f"{theirs}OPENSANDBOX_REQUEST_TIMEOUT_SECONDS": "600",
        f"{theirs}CPUS": "1.0",
        f"{theirs}MEMORY_MB": "512",
        f"{theirs}PIDS_LIMIT": "256",
        f"{theirs}TIMEOUT_SECONDS": "60",
        f"{theirs}NETWORK": "none",
        f"{theirs}READ_ONLY_ROOT": "true",
        f"{theirs}TMPFS_ENABLED": "true",
        f"{theirs}WORKSPACE_ACCESS": "rw",
        f"{theirs}ENV_ALLOWLIST": "[]",
        "SKILLFLAW_MCP_SANDBOX_IMAGE": IMAGE,
    }
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


def test_a_task_goes_on_in_the_next_server(serve: Callable[[], Server], remote: OpenSandbox) -> None:
    with serve() as first:
        with first.client() as client:
            task = client.run_cmd_async(SKILL, "echo begun; sleep 3; echo end", limits=SMALL)
            until(partial(_said, client, task, "begun"), 60, "it works")
        before = remote.containers()
        first.kill()
    with serve() as second, second.client() as client:
        assert remote.containers() == before
        ended = client.task_watch(task["task_id"], timeout_sec=60)
        assert (ended["status"], ended["stdout_tail"]) == ("succeeded", "begun\nend\n"), ended


def test_a_sandbox_that_somebody_ends_is_said_to_be_lost(serve: Callable[[], Server], remote: OpenSandbox) -> None:
    with serve() as server, server.client() as client:
        task = client.run_cmd_async(SKILL, "echo begun; sleep 1000", limits=SMALL)
        until(partial(_said, client, task, "begun"), 60, "it works")
        for name in remote.containers():
            remote.docker("rm", "-f", name)
        ended = client.task_watch(task["task_id"], timeout_sec=90)
        assert (ended["status"], ended["reason"]) == ("failed", "lost"), ended


def test_a_task_outlives_a_remote_that_is_away(serve: Callable[[], Server], remote: OpenSandbox) -> None:
    with serve() as server, server.client() as client:
        task = client.run_cmd_async(SKILL, "echo begun; sleep 4; echo end", limits=SMALL)
        until(partial(_said, client, task, "begun"), 60, "it works")
        remote.stop()
        try:
            refused = client.run_cmd(SKILL, "true", limits=SMALL)
        except Exception as error:  # noqa: BLE001 - the form of the refusal is not the point, its words are
            refused = {"status": "refused", "error": str(error)}
        assert refused["status"] != "succeeded"
        assert "does not answer" in str(refused), refused
        remote.start()
        ended = client.task_watch(task["task_id"], timeout_sec=60)
        assert (ended["status"], ended["stdout_tail"]) == ("succeeded", "begun\nend\n"), ended


def test_a_server_that_starts_while_the_remote_is_away_waits_for_it(
    serve: Callable[[], Server], remote: OpenSandbox
) -> None:
    with serve() as server, server.client() as client:
        task = client.run_cmd_async(SKILL, "echo begun; sleep 4; echo end", limits=SMALL)
        until(partial(_said, client, task, "begun"), 60, "it works")
        server.kill()
    remote.stop()
    with serve() as server, server.client() as client:
        until(lambda: "opensandbox" in str(readiness(server)[1]["dead"]), 60, "the server says that it is away")
        remote.start()
        until(lambda: readiness(server)[0] == 200, 60, "it is back")
        ended = client.task_watch(task["task_id"], timeout_sec=60)
        assert (ended["status"], ended["stdout_tail"]) == ("succeeded", "begun\nend\n"), ended


def _said(client: Any, task: dict[str, Any], word: str) -> bool:
    return word in str(client.task_status(task_id=task["task_id"])["stdout_tail"])
