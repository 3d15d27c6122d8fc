"""The stream of a task's events from a real server: followed live, taken up again, and closed to strangers."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.crash.server import SMALL, Server

SKILL = "skills.protocol.guide"
WORDS = {"stdout": "out", "stderr": "err"}


@contextmanager
def stream(server: Server, path: str, token: str | None = None, **headers: str) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]), timeout=60)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token or server.token}", **headers})
        yield connection.getresponse()
    finally:
        connection.close()


def events(response: http.client.HTTPResponse) -> Iterator[tuple[str, str, Any]]:
    """Yields the name, the id and the data of each event."""
    fields: dict[str, str] = {}
    while line := response.readline().decode():
        if line == "\n":
            if fields:
                yield fields["event"], fields["id"], json.loads(fields["data"])
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name] = value


def started(server: Server, command: str) -> str:
    with server.client() as client:
        return str(client.run_cmd_async(SKILL, command, limits=SMALL, timeout_sec=600)["task_id"])


def texts(told: list[tuple[str, str, Any]]) -> dict[str, str]:
    found = {"stdout": "", "stderr": ""}
    for name, _, data in told:
        for chunk in data["chunks"] if name == "output" else ():
            found[chunk["stream"]] += chunk["text"]
    return found


@pytest.mark.timeout(240)
def test_a_stream_is_followed_and_taken_up_behind_a_kill(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with Server(data_dir) as first:
        task_id = started(first, "for n in $(seq 40); do echo out $n; echo err $n >&2; sleep 0.1; done; exit 3")
        told = []
        with stream(first, f"/tasks/{task_id}/events") as response:
            assert response.status == 200
            assert str(response.headers["content-type"]).startswith("text/event-stream")
            for event in events(response):
                told.append(event)
                if "out 3\n" in texts(told)["stdout"]:
                    break
        first.kill()
    with Server(data_dir) as second:
        with stream(second, f"/tasks/{task_id}/events", **{"Last-Event-ID": told[-1][1]}) as response:
            told += list(events(response))
        kinds = [data["kind"] for name, _, data in told if name == "state"]
        assert kinds[:3] == ["queued", "starting", "running"]
        assert kinds[-1] == "failed"
        assert kinds.count("running") == kinds.count("resumed") == 1
        said = {name: "".join(f"{word} {n}\n" for n in range(1, 41)) for name, word in WORDS.items()}
        assert texts(told) == said
        name, last, data = told[-1]
        assert (name, data["status"], data["exit_code"]) == ("end", "failed", 3)
        with stream(second, f"/tasks/{task_id}/events?last_event_id={last}") as response:
            assert [name for name, _, _ in events(response)] == ["end"]


@pytest.mark.timeout(240)
def test_a_silent_stream_beats_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        task_id = started(server, "sleep 600")
        with stream(server, f"/tasks/{task_id}/events?heartbeat_sec=5") as response:
            while (line := response.readline()) != b": alive\n":
                assert line, "it goes on"
        with server.client() as client:
            for path, status in (
                ("/tasks/run_none/events", 404), ("/tasks/../events", 404), ("/tasks/x%20y/events", 404),
                (f"/tasks/{task_id}/events?heartbeat_sec=1", 400), (f"/tasks/{task_id}/events?last_event_id=x", 400),
                (f"/tasks/{task_id}/events?agent=other", 404),
            ):  # fmt: skip
                with stream(server, path) as response:
                    assert response.status == status, path
            client.task_cancel(task_id)
        with stream(server, f"/tasks/{task_id}/events") as response:
            assert list(events(response))[-1][2]["status"] == "canceled"


@pytest.mark.timeout(240)
def test_a_task_of_another_has_no_stream(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        task_id = started(server, "echo private; sleep 600")
        line = ("token", "create", "mallory", "--data-dir", str(tmp_path / "data"), "--scopes", "run_code")
        made = subprocess.run([sys.executable, "-m", "skillyard", *line], check=True, capture_output=True, text=True)
        token = made.stdout.strip()
        with stream(server, f"/tasks/{task_id}/events", token) as response:
            theirs = response.status, response.read().replace(task_id.encode(), b"ID")
        with stream(server, "/tasks/run_00000000/events", token) as response:
            absent = response.status, response.read().replace(b"run_00000000", b"ID")
        assert theirs == absent
        assert theirs[0] == 404
        with server.client() as client:
            client.task_cancel(task_id)
