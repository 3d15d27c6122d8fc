"""A real server process, started and used as a user does."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from skillyard.client.sync import SyncClient
from tests import waiting

START_S = 60
STOP_S = 30
READY = re.compile(r"skillyard is ready at (http://127\.0\.0\.1:\d+)\n")


class Server:
    """``skillyard serve --port 0`` on a data directory."""

    def __init__(self, data_dir: Path, *options: str, env: dict[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self.errors = (data_dir.parent / "stderr").open("w+b")
        command = [sys.executable, "-m", "skillyard", "serve", "--port", "0", "--data-dir", str(data_dir), *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.errors, env={**os.environ, **(env or {})}
        )

    def ready(self) -> str:
        """The URL of the line that it prints."""
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_S)
        line = self.process.stdout.readline().decode() if readable else ""
        match = READY.fullmatch(line)
        assert match, f"printed {line!r}; {self.log()}"
        return match[1]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Exit status."""
        self.process.send_signal(number)
        return self.process.wait(STOP_S)

    def log(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.close()


Start = Callable[..., Server]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def start(data_dir: Path) -> Iterator[Start]:
    started: list[Server] = []

    def begin(*options: str, **more: Any) -> Server:
        started.append(Server(data_dir, *options, **more))
        return started[-1]

    yield begin
    for server in started:
        server.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests that leave it as it is."""
    server = Server(tmp_path_factory.mktemp("shared") / "data")
    try:
        server.url = server.ready()  # type: ignore[attr-defined]
        yield server
    finally:
        server.close()


@pytest.fixture
def client(shared: Server) -> Iterator[SyncClient]:
    with SyncClient(data_dir=shared.data_dir) as it:
        yield it


@pytest.fixture
def http(shared: Server) -> Iterator[httpx2.Client]:
    token = (shared.data_dir / "token").read_text().strip()
    base: str = shared.url  # type: ignore[attr-defined]
    with httpx2.Client(base_url=base, headers={"authorization": f"Bearer {token}"}, trust_env=False) as it:
        yield it


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    return waiting.until(condition, seconds)


def processes_of(data_dir: Path) -> list[str]:
    """Command lines of all processes that name the data directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(data_dir) in line and f"/{os.getpid()}/" not in str(entry):
                found.append(line)
    return found


def mounts_of(data_dir: Path) -> list[str]:
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(data_dir) in line]


def rpc(method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}


CODE = "def main(args):\n    return {'sum': sum(args['xs'])}\n"
FOREVER = "import time\ndef main(args):\n    print('begun', flush=True)\n    time.sleep(600)\n"


def test_code_runs_and_the_run_is_recorded(client: SyncClient, http: httpx2.Client) -> None:
    params = {"language": "python", "code": CODE, "args": {"xs": [1, 2, 3]}}
    run = http.post("/rpc", json=rpc("run_code", params)).json()["result"]
    assert (run["status"], run["output"]) == ("completed", {"sum": 6})
    record = http.post("/rpc", json=rpc("runs.show", {"run_id": run["run_id"]})).json()["result"]["run"]
    assert (record["principal"], record["outcome"], record["status"]) == ("owner", "exit", "completed")
    assert client.call("list_skills", {})["skills"]


def test_a_failing_run_is_http_200(http: httpx2.Client) -> None:
    params = {"language": "python", "code": "def main(args):\n    raise ValueError('no')\n"}
    response = http.post("/rpc", json=rpc("run_code", params))
    assert (response.status_code, response.json()["result"]["status"]) == (200, "failed")
    assert response.json()["result"]["error"]["type"] == "ValueError"


def test_blobs_go_in_and_out_in_pieces(http: httpx2.Client) -> None:
    data = os.urandom(3_000_000)
    made = http.put("/blobs", content=data, headers={"content-type": "application/x-test"}).json()
    path = f"/blobs/{made['blob_id']}"
    whole = http.get(path)
    assert (whole.content, whole.headers["content-type"]) == (data, "application/x-test")
    assert whole.headers["etag"] == f'"{made["sha256"]}"'
    part = http.get(path, headers={"range": "bytes=2999990-"})
    assert (part.status_code, part.content) == (206, data[-10:])
    assert http.get(path, headers={"range": "bytes=3000000-"}).status_code == 416
    assert http.get(path, headers={"if-none-match": whole.headers["etag"]}).status_code == 304


def test_a_run_reads_a_streamed_blob_and_its_own_can_be_fetched(http: httpx2.Client) -> None:
    blob_id = http.put("/blobs", content=b"a,b\n1,2\n", headers={"content-type": "text/csv"}).json()["blob_id"]
    code = (
        "from runtime import blobs\n"
        "def main(args):\n"
        "    return {'blob': blobs.write_text(blobs.read_text(args['blob']).upper())}\n"
    )
    params = {"language": "python", "code": code, "args": {"blob": blob_id}, "input_blobs": [blob_id]}
    run = http.post("/rpc", json=rpc("run_code", params)).json()["result"]
    assert run["status"] == "completed", run
    assert http.get(f"/blobs/{run['output_blobs'][0]}").content == b"A,B\n1,2\n"


def test_a_caller_that_goes_away_cancels_its_run(shared: Server, http: httpx2.Client) -> None:
    run = _abandoned(shared, http, {"language": "python", "code": FOREVER})
    assert run["outcome"] == "cancelled"


def test_a_detached_run_outlives_its_caller(shared: Server, http: httpx2.Client) -> None:
    code = (
        "import time\ndef main(args):\n    print('begun', flush=True)\n    time.sleep(1)\n    return {'done': True}\n"
    )
    run = _abandoned(shared, http, {"language": "python", "code": code, "detach": True})
    assert (run["outcome"], run["output"]) == ("exit", {"done": True})


def _abandoned(shared: Server, http: httpx2.Client, params: dict[str, Any]) -> dict[str, Any]:
    """The record of a run whose caller hangs up as soon as it works."""
    before = {run["run_id"] for run in _runs(http)}
    body = json.dumps(rpc("run_code", params)).encode()
    token = (shared.data_dir / "token").read_text().strip()
    port = int(shared.url.rpartition(":")[2])  # type: ignore[attr-defined]
    head = (
        f"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(head.encode() + body)
        new = until(lambda: [run["run_id"] for run in _runs(http) if run["run_id"] not in before])
        until(lambda: "begun" in _log(http, new[0]))
    run_id = new[0]
    ended = until(lambda: [r for r in _runs(http) if r["run_id"] == run_id and r["status"] != "running"])
    record: dict[str, Any] = ended[0]
    return record


def _log(http: httpx2.Client, run_id: str) -> str:
    return http.post("/rpc", json=rpc("runs.logs", {"run_id": run_id})).json()["result"]["content"]  # type: ignore[no-any-return]


def _runs(http: httpx2.Client) -> list[dict[str, Any]]:
    return http.post("/rpc", json=rpc("runs.list")).json()["result"]["runs"]  # type: ignore[no-any-return]


def test_metrics_count_what_ran(http: httpx2.Client) -> None:
    http.post("/rpc", json=rpc("run_code", {"language": "python", "code": CODE, "args": {"xs": []}}))
    text = http.get("/metrics").text
    assert re.search(r'skillyard_runs_total\{kind="run_code",outcome="exit",status="completed"\} [1-9]', text)
    until(lambda: "skillyard_runs_running 0.0" in http.get("/metrics").text)  # its place is free behind the answer
    assert "run_" not in re.sub(r"skillyard_runs?_|run_code", "", text)


def test_probes_are_open_and_nothing_else_is(shared: Server) -> None:
    with httpx2.Client(base_url=shared.url, trust_env=False) as nobody:  # type: ignore[attr-defined]
        ready = nobody.get("/readyz")
        assert (ready.status_code, ready.json()["status"], ready.json()["isolation"]) == (200, "ready", "native")
        assert ready.json()["allow_degraded"] == []
        assert nobody.get("/healthz").status_code == 200
        assert nobody.post("/rpc", json=rpc("list_skills")).status_code == 401
        assert nobody.get("/metrics").status_code == 401


def test_the_log_is_json_with_run_ids_and_without_secrets(shared: Server, http: httpx2.Client) -> None:
    code = "def main(args):\n    print('hunter2')\n    return {'x': args['password']}\n"
    params = {"language": "python", "code": code, "args": {"password": "hunter2"}}
    run_id = http.post("/rpc", json=rpc("run_code", params)).json()["result"]["run_id"]
    until(lambda: run_id in shared.log())
    lines = [json.loads(line) for line in shared.log().splitlines()]
    assert [line["outcome"] for line in lines if line.get("run_id") == run_id and line["event"] == "run ended"] == [
        "exit"
    ]
    assert "hunter2" not in shared.log()
    assert (shared.data_dir / "token").read_text().strip() not in shared.log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_leaves_nothing(start: Start, data_dir: Path, number: int) -> None:
    server = start()
    url = server.ready()
    assert json.loads((data_dir / "server.json").read_text())["url"] == url
    assert (data_dir / "token").stat().st_mode & 0o777 == 0o600
    with SyncClient(data_dir=data_dir) as client:
        run = client.call("run_code", {"language": "python", "code": CODE, "args": {"xs": [1]}})
        assert run["status"] == "completed"
    assert server.stop(number) == 0
    assert not (data_dir / "server.json").exists()
    until(lambda: not processes_of(data_dir))
    assert mounts_of(data_dir) == []


@contextlib.contextmanager
def running_forever(url: str, data_dir: Path) -> Iterator[socket.socket]:
    """A connection whose run works."""
    token = (data_dir / "token").read_text().strip()
    body = json.dumps(rpc("run_code", {"language": "python", "code": FOREVER})).encode()
    head = (
        f"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with (
        httpx2.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, trust_env=False) as http,
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as sock,
    ):
        sock.sendall(head.encode() + body)
        until(lambda: any("begun" in _log(http, run["run_id"]) for run in _runs(http)))
        yield sock


def test_a_killed_server_leaves_lost_runs_and_nothing_else(start: Start, data_dir: Path) -> None:
    server = start()
    with running_forever(server.ready(), data_dir):
        server.process.kill()
        server.process.wait(STOP_S)
    again = start()
    again.ready()
    with SyncClient(data_dir=data_dir) as client:
        (run,) = client.call("runs.list", {})["runs"]
    assert (run["status"], run["outcome"]) == ("failed", "lost")
    assert again.stop() == 0
    until(lambda: not processes_of(data_dir))
    assert mounts_of(data_dir) == []


def test_a_stop_ends_a_run_that_outlasts_the_grace(start: Start, data_dir: Path) -> None:
    server = start(env={"SKILLYARD_SERVER__GRACE_S": "0.2"})
    with running_forever(server.ready(), data_dir) as sock:
        assert server.stop() == 0
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    result = json.loads(answer.partition(b"\r\n\r\n")[2])["result"]
    assert (result["status"], result["error"]["type"]) == ("failed", "Cancelled")
    until(lambda: not processes_of(data_dir))


def test_nobody_is_sent_to_a_port_that_is_free_again(start: Start, data_dir: Path) -> None:
    """Another user of the host could listen there while the server drains, and would be given the token."""
    server = start(env={"SKILLYARD_SERVER__GRACE_S": "300"})
    with running_forever(url := server.ready(), data_dir):
        server.process.send_signal(signal.SIGTERM)
        until(lambda: _is_closed(url))
        assert server.process.poll() is None
        assert not (data_dir / "server.json").exists()
        assert server.stop() == 0, "a second signal hurries it"


def _is_closed(url: str) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) != 0


def test_the_token_survives_a_restart(start: Start, data_dir: Path) -> None:
    server = start()
    server.ready()
    token = (data_dir / "token").read_text()
    assert server.stop() == 0
    again = start()
    again.ready()
    assert (data_dir / "token").read_text() == token
    with SyncClient(data_dir=data_dir) as client:
        assert client.call("list_skills", {})["skills"]


def test_no_auth_serves_loopback_without_a_token(start: Start, data_dir: Path) -> None:
    url = start("--no-auth").ready()
    response = httpx2.post(f"{url}/rpc", json=rpc("list_skills"), trust_env=False)
    assert response.status_code == 200
    assert not (data_dir / "token").exists()
    rebound = httpx2.post(f"{url}/rpc", json=rpc("list_skills"), headers={"host": "evil.example"}, trust_env=False)
    assert rebound.status_code == 421


def test_no_auth_is_refused_elsewhere(start: Start) -> None:
    server = start("--no-auth", "--host", "0.0.0.0")
    assert server.process.wait(START_S) != 0
    assert "--no-auth" in server.log()


def test_skills_that_are_not_served_are_in_the_log(start: Start, tmp_path: Path) -> None:
    (tmp_path / "skills/broken").mkdir(parents=True)
    (tmp_path / "skills/broken/SKILL.md").write_text("nothing that says what it is")
    server = start("--skills-dir", str(tmp_path / "skills"))
    server.ready()
    until(lambda: "problems of skills: 1" in server.log())
    assert "a skill is not served: " in server.log()
    assert "broken/SKILL.md" in server.log()


def test_a_port_in_use_is_one_clear_line(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = start("--port", str(port))
        assert server.process.wait(START_S) != 0
    assert "cannot listen" in server.log()
    assert len(server.log().splitlines()) == 1
