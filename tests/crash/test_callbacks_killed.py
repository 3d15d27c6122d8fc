"""Callbacks of tasks to a receiver of the test: signed, tried again, alive behind kill -9, never to closed hosts."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from skillyard.client.errors import RpcError
from tests.crash.leftovers import until
from tests.crash.server import SMALL, Server

SKILL = "skills.protocol.guide"
KEY = "a key of the project's"


class Receiver(ThreadingHTTPServer):
    """Answers as ``answers`` says, the last of them for ever, and keeps what came."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.came: list[tuple[str, dict[str, str], bytes]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def at(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.came.append((self.path, headers, body))
        answers = self.server.answers
        self.send_response(answers.pop(0) if len(answers) > 1 else answers[0])
        self.send_header("location", f"http://{self.server.at}/elsewhere")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@contextmanager
def receiver(*answers: int) -> Iterator[Receiver]:
    with Receiver(*answers) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join(30)


def _store_key(data_dir: Path) -> None:
    words = ["secret", "set", "CALLBACK_KEY", "--skills", "Callbacks", "--data-dir", str(data_dir)]
    subprocess.run([sys.executable, "-m", "skillyard", *words], input=KEY.encode(), check=True, timeout=60)


def _start(server: Server, url: str, command: str = "true") -> str:
    with server.client() as client:
        return str(client.run_cmd_async(SKILL, command, limits=SMALL, callback_url=url)["task_id"])


def _callback(server: Server, task_id: str) -> dict[str, Any]:
    with server.client() as client:
        return dict(client.task_watch(task_id, timeout_sec=50)["callback"])


def _check(came: tuple[str, dict[str, str], bytes], task_id: str) -> None:
    path, headers, body = came
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    mac = base64.b64encode(hmac.new(KEY.encode(), signed, hashlib.sha256).digest()).decode()
    assert (path, headers["webhook-signature"], headers["webhook-id"]) == ("/hook?a=1", f"v1,{mac}", f"msg_{task_id}")
    told = json.loads(body)
    data = told["data"]
    assert (told["type"], data["task_id"], data["status"], data["reason"]) == ("task.ended", task_id, "failed", "exit")
    assert data.keys() == {"task_id", "status", "reason", "attempt", "created_at", "started_at", "finished_at"}
    assert b"secret output" not in body


@pytest.mark.timeout(240)
def test_it_is_told_until_somebody_takes_it(tmp_path: Path) -> None:
    """Also by the next server. A redirect is not followed."""
    data_dir = tmp_path / "data"
    with receiver(302, 204) as hook:
        hosts = json.dumps([hook.at])
        with Server(data_dir, SKILLYARD_COMMANDS__CALLBACK_HOSTS=hosts) as first:
            with pytest.raises(RpcError, match="no key to sign"):
                _start(first, f"http://{hook.at}/hook?a=1")
            _store_key(data_dir)
            with pytest.raises(RpcError, match=r"commands\.callback_hosts allows"):
                _start(first, "https://example.org/hook")
            task_id = _start(first, f"http://{hook.at}/hook?a=1", "echo secret output; exit 3")
            until(lambda: _callback(first, task_id)["tries"] == 1, 60, "it was tried")
            assert _callback(first, task_id) == {"state": "pending", "tries": 1, "told": "HTTP 302"}
            first.kill()
        with Server(data_dir, SKILLYARD_COMMANDS__CALLBACK_HOSTS=hosts) as second:
            until(lambda: _callback(second, task_id)["state"] == "delivered", 60, "it was delivered")
            with second.client() as client:
                assert client.task_status(task_id)["exit_code"] == 3
        assert len(hook.came) == 2, "nothing went elsewhere"
        for came in hook.came:
            _check(came, task_id)


@pytest.mark.timeout(240)
def test_names_of_closed_addresses_are_not_reached(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with receiver(204) as hook:
        name = hook.at.replace("127.0.0.1", "localhost")
        with Server(data_dir, SKILLYARD_COMMANDS__CALLBACK_HOSTS=json.dumps([name, "*:443"])) as server:
            _store_key(data_dir)
            for url in ("http://169.254.169.254/latest", f"http://{hook.at}/", "https://10.0.0.1/", "https://[::1]/"):
                with pytest.raises(RpcError, match="callback_url"):
                    _start(server, url)
            task_id = _start(server, f"http://{name}/hook")
            until(lambda: _callback(server, task_id)["tries"] == 1, 60, "it was tried")
            told = _callback(server, task_id)
            assert told["state"] == "pending"
            assert "closed unless" in told["told"], told
        assert hook.came == []
