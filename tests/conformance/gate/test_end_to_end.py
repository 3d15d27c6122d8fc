"""A server, a sandbox, the gate and a site on the loopback: what is allowed works, what is refused says why."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from skillyard.client.errors import RpcError
from skillyard.client.run import Run
from skillyard.client.sync import SyncClient
from tests.faces.server.test_server import Server

BOUND_S = 60.0

FETCH = """
import urllib.request

def main(args):
    ways = [] if args.get("proxy", True) else [urllib.request.ProxyHandler({})]
    opener = urllib.request.build_opener(*ways)
    return {"said": opener.open(args["url"], timeout=20).read().decode()}
"""

HOLD = """
import socket

def main(args):
    with socket.create_connection((args["host"], args["port"]), 20) as way:
        way.sendall(b"GET /slow HTTP/1.1\\r\\nHost: %s:%d\\r\\n\\r\\n" % (args["host"].encode(), args["port"]))
        got = 0
        try:
            while data := way.recv(65536):
                got += len(data)
        except OSError as error:
            return {"got": got, "ended": type(error).__name__}
    return {"got": got, "ended": "closed"}
"""

TRY = """
import contextlib, socket, time

def main(args):
    tries = 0
    while True:
        tries += 1
        try:
            with socket.create_connection((args["host"], args["port"]), 5) as way:
                way.sendall(b"GET / HTTP/1.1\\r\\nHost: %s:%d\\r\\n\\r\\n" % (args["host"].encode(), args["port"]))
                return {"tries": tries, "got": len(way.recv(9))}  # the kernel connects before the gate knows of it
        except ConnectionError:
            if tries == 1:
                with contextlib.suppress(OSError):
                    socket.getaddrinfo("refused-once.test", 80)  # the record tells of it
            time.sleep(0.02)
"""


class Site(BaseHTTPRequestHandler):
    """``/slow`` goes on as long as it is read."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path != "/slow":
            body = b"hello from " + self.headers["host"].partition(":")[0].encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"1\r\nx\r\n")
                time.sleep(0.01)

    def log_message(self, *_args: Any) -> None:
        return


@pytest.fixture(scope="module")
def sites() -> Iterator[list[int]]:
    """Ports of two sites."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Site) for _ in range(2)]
    for server in servers:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [server.server_address[1] for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, sites: list[int]) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("egress")
    skill(home / "skills", "demo.fetch", f"site.test:{sites[0]}")
    skill(home / "skills", "demo.open", "*")
    (home / "data").mkdir(mode=0o700)
    (home / "data" / "config.toml").write_text(
        f'[network]\nrun_code = ["site.test:{sites[0]}"]\nhosts = {{"site.test" = "127.0.0.1"}}\n'
    )
    server = Server(home / "data", "--skills-dir", str(home / "skills"))
    try:
        server.ready()
        yield server
    finally:
        server.close()


def skill(directory: Path, name: str, rule: str) -> None:
    place = directory / name
    (place / "code").mkdir(parents=True)
    (place / "code" / "main.py").write_text(FETCH)
    (place / "SKILL.md").write_text("---\nname: Fetch\n---\n# Fetch\n")
    (place / "skill.toml").write_text(
        f'name = "{name}"\nversion = "1.0.0"\ndescription = "Fetches"\nkind = "action"\n'
        '[runtime]\nlanguage = "python"\nentrypoint = "code/main.py"\nexport = "main"\n'
        f'[permissions]\nnetwork = ["{rule}"]\n'
    )


@pytest.fixture
def client(server: Server) -> Iterator[SyncClient]:
    with SyncClient(data_dir=server.data_dir, timeout=BOUND_S) as client:
        [native] = [found for found in client.show_policy()["isolations"] if found["isolation"] == "native"]
        if native["egress"] == "missing":
            pytest.skip(f"no sandbox of this host can be plugged into a gate: {native['why']}")
        yield client


def network(client: SyncClient, run: Run) -> dict[str, Any]:
    found: dict[str, Any] = client.show_run(run.run_id)["run"]["network"]
    return found


def told(found: dict[str, Any]) -> list[tuple[str, str, int, bool]]:
    return sorted((c["via"], c["host"], c["port"], c["allowed"]) for c in found["connections"])


def test_what_code_may_reach_is_reached_with_and_without_a_proxy(client: SyncClient, sites: list[int]) -> None:
    for proxy, via in ((True, "http"), (False, "direct")):
        run = client.run_code(FETCH, {"url": f"http://site.test:{sites[0]}/", "proxy": proxy})
        assert run.output == {"said": "hello from site.test"}, dict(run)
        found = network(client, run)
        assert told(found) == [(via, "site.test", sites[0], True)]
        [connection] = found["connections"]
        assert (connection["layer"], connection["rule"]) == ("code", f"site.test:{sites[0]}")
        assert connection["sent_bytes"] > 30
        assert connection["received_bytes"] > 60
        assert found["complete"]


@pytest.mark.parametrize(
    ("url", "proxy", "reason"),
    [
        ("http://other.test/", True, "no code rule allows other.test"),
        ("http://other.test/", False, "no code rule allows other.test"),
        ("http://site.test:{other}/", True, "does not allow port {other}: write 'site.test:{other}'"),
    ],
)
def test_what_it_may_not_fails_at_once_and_says_why(
    client: SyncClient, sites: list[int], url: str, reason: str, proxy: bool
) -> None:
    port, other = sites
    began = time.monotonic()
    run = client.run_code(FETCH, {"url": url.format(port=port, other=other), "proxy": proxy})
    assert time.monotonic() - began < BOUND_S / 3
    assert not run.ok
    assert run.error is not None
    assert "(network: " in run.error["message"], dict(run)
    assert reason.format(port=port, other=other) in run.error["message"]
    assert run["network"]["refused"] >= 1
    refused = [c for c in network(client, run)["connections"] if not c["allowed"]]
    assert any(reason.format(port=port, other=other) in c["reason"] for c in refused)


def test_a_port_that_no_rule_names_is_refused_by_the_sandbox_itself(client: SyncClient, sites: list[int]) -> None:
    port, other = sites
    run = client.run_code(FETCH, {"url": f"http://site.test:{other}/", "proxy": False})
    assert run.error is not None
    assert "a port that no rule names is refused at once" in run.error["message"]
    assert f"code: site.test:{port}" in run.error["message"]
    assert network(client, run)["connections"] == []


def test_the_loopback_is_the_sandboxs_own(client: SyncClient, sites: list[int]) -> None:
    run = client.run_code(FETCH, {"url": f"http://127.0.0.1:{sites[0]}/", "proxy": False})
    assert not run.ok
    assert not any(c["allowed"] for c in network(client, run)["connections"])


def test_a_skill_reaches_what_it_declares_and_a_request_narrows(client: SyncClient, sites: list[int]) -> None:
    args = {"url": f"http://site.test:{sites[0]}/"}
    assert client.execute_skill("demo.fetch", args).ok
    narrowed = client.execute_skill("demo.fetch", args, network=["nothing.test"])
    assert not narrowed.ok
    assert f"site.test:{sites[0]} refused: no request rule allows site.test" in str(narrowed.error)
    without = client.execute_skill("demo.fetch", args, network=[])
    assert not without.ok
    assert network(client, without) is None
    refused = client.execute_skill("demo.open", args)
    assert (refused.error or {})["type"] == "PolicyRefused"
    assert client.run_code(FETCH, args, network=[]).ok is False


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def begun(client: SyncClient, work: Future[Run], ready: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The record of the run at work, once ``ready``."""
    end = time.monotonic() + BOUND_S
    while time.monotonic() < end and not work.done():
        for line in client.list_runs(status="running", limit=1)["runs"]:
            record: dict[str, Any] = client.show_run(line["run_id"])["run"]
            if record["status"] == "running" and ready(record):
                return record
        time.sleep(0.02)
    raise AssertionError(work.result(0) if work.done() else "it did not begin")


def reached(record: dict[str, Any]) -> bool:
    return any(c["allowed"] and c["received_bytes"] > 100 for c in record["network"]["connections"])


def test_narrowing_ends_what_is_no_longer_allowed(
    client: SyncClient, server: Server, sites: list[int], beside: ThreadPoolExecutor
) -> None:
    owner = token(server, "alice", "execute", "run_code")
    with SyncClient(data_dir=server.data_dir, token=owner, timeout=BOUND_S) as alice:
        work = beside.submit(alice.run_code, HOLD, {"host": "site.test", "port": sites[0]}, timeout_ms=40_000)
        record = begun(alice, work, reached)
        changed = alice.set_run_network(record["run_id"], [])["run"]["network"]
        run = work.result(BOUND_S)
        assert run.ok, dict(run)
        assert run.output["got"] > 100
        assert [(c["by"], c["layer"], c["rules"]) for c in changed["changes"]] == [("alice", "live", [])]
        with pytest.raises(RpcError, match="going on"):
            alice.set_run_network(run.run_id, [])
    found = network(client, run)
    assert found["in_force"][-1] == {"name": "live", "rules": []}
    assert found["changes"] == changed["changes"]


def test_an_admin_widens_and_new_ports_are_plugged(
    client: SyncClient, sites: list[int], beside: ThreadPoolExecutor
) -> None:
    port, other = sites
    work = beside.submit(client.run_code, TRY, {"host": "site.test", "port": other}, timeout_ms=40_000)
    record = begun(client, work, lambda record: bool(record["network"]["connections"]))
    assert not any(c["allowed"] for c in record["network"]["connections"] if c["port"] == other)
    client.set_run_network(record["run_id"], [f"site.test:{port},{other}"])
    run = work.result(BOUND_S)
    assert run.ok, dict(run)
    allowed = [c for c in network(client, run)["connections"] if c["allowed"]]
    assert {(c["port"], c["layer"]) for c in allowed} == {(other, "admin")}
    assert run.output["tries"] > 1


def test_another_principal_changes_nothing(
    client: SyncClient, server: Server, sites: list[int], beside: ThreadPoolExecutor
) -> None:
    work = beside.submit(client.run_code, HOLD, {"host": "site.test", "port": sites[0]}, timeout_ms=40_000)
    record = begun(client, work, reached)
    mallory = token(server, "mallory", "execute", "run_code")
    with SyncClient(data_dir=server.data_dir, token=mallory) as stranger, pytest.raises(RpcError, match="no run"):
        stranger.set_run_network(record["run_id"], [])
    assert client.show_run(record["run_id"])["run"]["network"]["changes"] == []
    client.cancel_run(record["run_id"])
    run = work.result(BOUND_S)
    assert (run.error or {})["type"] == "Cancelled"
    assert [c["allowed"] for c in network(client, run)["connections"]] == [True]


def token(server: Server, name: str, *scopes: str) -> str:
    command = [sys.executable, "-m", "skillyard", "token", "create", name, "--scopes", ",".join(scopes)]
    done = subprocess.run(
        [*command, "--data-dir", str(server.data_dir)], capture_output=True, text=True, timeout=BOUND_S, check=True
    )
    return done.stdout.strip().splitlines()[-1]
