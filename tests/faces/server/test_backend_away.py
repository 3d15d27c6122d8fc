"""A server whose engine is away starts, says so, and works as soon as the engine is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillyard.config.backends import OciSettings
from skillyard.domain.errors import ProtectionMissing
from tests.conformance.sandbox import oci_ground
from tests.crash.server import SMALL, Server
from tests.faces.server.test_parts import readiness, until

pytestmark = pytest.mark.timeout(300)
SKILL = "skills.protocol.guide"
# An engine has its sockets below ``tmp_path / "e"``: their paths have at most 104 characters.
CODE = "def main(args): return 1"


def test_an_engine_that_is_away_is_waited_for(tmp_path: Path) -> None:
    scratch = tmp_path / "e"
    scratch.mkdir()
    with oci_ground.engine(scratch) as (docker, settings):
        docker.stop()
        with _server(tmp_path, settings) as server, server.client() as client:
            status, told = readiness(server)
            assert status == 503
            assert "does not answer" in told["dead"]["oci"]
            assert str(scratch) not in str(told)
            with pytest.raises(ProtectionMissing, match="'oci' is away"):
                client.run_code(CODE)
            for _ in range(2):
                docker.start()
                until(lambda: readiness(server)[0] == 200)
                assert client.run_code(CODE).ok
                docker.stop()
                until(lambda: readiness(server)[0] == 503)
            docker.start()
            until(lambda: readiness(server)[0] == 200)
        assert docker("ps", "-aq").stdout == ""


def test_sessions_leave_an_image_that_was_replaced(tmp_path: Path) -> None:
    """While the server works, and without a call: another image of that name is another revision. One that is gone is
    told of."""
    scratch, name = tmp_path / "e", "skillyard-tests/moves:2"
    scratch.mkdir()
    with oci_ground.engine(scratch) as (docker, settings):
        docker("tag", settings.image, name)
        with _server(tmp_path, settings.changed(image=name)) as server, server.client() as client:
            text = "echo kept >> ../kept; cat ../kept"
            assert client.run_cmd(SKILL, text, session_id="a", limits=SMALL)["stdout"] == "kept\n"
            [before] = client.sessions()["sessions"]
            docker("build", "-q", "-t", name, "-", stdin=f"FROM {settings.image}\nLABEL a=b\n".encode())
            made = docker("ps", "-q").stdout
            until(lambda: client.sessions()["sessions"][0]["revision"] != before["revision"])
            until(lambda: len(docker("ps", "-aq").stdout.split()) == 1)
            assert docker("ps", "-q").stdout != made, "it left the sandbox of the earlier image before any call"
            assert client.run_cmd(SKILL, text, session_id="a", limits=SMALL)["stdout"] == "kept\nkept\n"
            run = client.show_run(client.list_runs()["runs"][0]["run_id"])["run"]
            assert run["digests"]["image"] == docker("inspect", "--format", "{{.Id}}", name).stdout.strip()
            client.end_session("a")
            docker("rmi", "-f", name)
            until(lambda: readiness(server)[0] == 503)
            docker("tag", settings.image, name)
            until(lambda: readiness(server)[0] == 200)
        assert docker("ps", "-aq").stdout == ""


def test_what_an_earlier_server_left_is_settled_when_the_engine_is_back(tmp_path: Path) -> None:
    scratch = tmp_path / "e"
    scratch.mkdir()
    with oci_ground.engine(scratch) as (docker, settings):
        with _server(tmp_path, settings) as server, server.client() as client:
            kept = client.run_cmd_async(SKILL, "echo begun; sleep 600", limits=SMALL)["task_id"]
            until(lambda: "begun" in client.task_status(task_id=kept)["stdout_tail"])
            server.kill()
        docker.stop()
        with _server(tmp_path, settings) as server, server.client() as client:
            until(lambda: readiness(server)[0] == 503)
            assert client.task_status(task_id=kept)["status"] == "running", "nobody knows better yet"
            docker.start()
            ended = client.task_watch(kept, timeout_sec=60)
            assert (ended["status"], ended["reason"]) == ("failed", "lost"), ended
            assert client.run_cmd(SKILL, "true", limits=SMALL, wait_ms=60_000)["status"] == "succeeded"
            until(lambda: docker("ps", "-aq").stdout == "")


def test_its_log_says_why_an_engine_is_away(tmp_path: Path) -> None:
    """Without an engine: callers hear that it is away, and the operator reads the reason at once."""
    settings = OciSettings(socket=str(tmp_path / "none.sock"), image="skillyard-tests/none:1")
    with _server(tmp_path, settings) as server:
        assert readiness(server)[0] == 503
        assert f"the backend 'oci' is away: the container engine at {settings.socket}" in server.log()


def _server(tmp_path: Path, settings: OciSettings) -> Server:
    return Server(
        tmp_path / "data",
        SKILLYARD_POLICY__ISOLATION="oci",
        SKILLYARD_OCI__SOCKET=settings.socket,
        SKILLYARD_OCI__IMAGE=settings.image,
        SKILLYARD_OCI__READY="0",  # else one may wait ready before the engine is asked for what is left
    )
