"""Ports of services over a real server: by path, by name, as a websocket, hostile ones, and after its death."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import pytest

from skillyard.client import errors
from tests import waiting
from tests.bundles import skill_files, tar
from tests.crash.server import Server
from tests.faces.server.test_parts import until

pytestmark = pytest.mark.timeout(300)
PROGRAM = Path(__file__).with_name("service_program.py").read_text()
PATIENCE_S = 90.0
KEY = base64.b64encode(b"0123456789abcdef").decode()
ACCEPT = base64.b64encode(hashlib.sha1(f"{KEY}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()).decode()


class Yard:
    """A server with one service, and callers of it."""

    def __init__(self, server: Server, **asked: Any) -> None:
        self.server = server
        with server.client() as client:
            client.publish_skill(io.BytesIO(tar(skill_files("acme.words.say"))))
            wanted: dict[str, Any] = {
                "skill_name": "acme.words.say", "command": PROGRAM, "language": "python",
                "expose_ports": [8000, 8001, 8003], "ready_pattern": "^serving", "limits": {"memory_mb": 128}, **asked,
            }  # fmt: skip
            self.started = client.run_service(**wanted)
        self.task_id = self.started["task_id"]
        self.until_it_answers()

    def __enter__(self) -> Yard:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the service, which the end of its server would leave running."""
        with self.server.client() as client:
            client.task_cancel(self.task_id)

    def until_it_answers(self) -> None:
        waiting.until(self._answers, PATIENCE_S, "the service answers")

    def _answers(self) -> bool:
        try:
            return self.get("/").status_code == 200
        except httpx2.TransportError:
            return False

    @property
    def auth(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.server.token}"}

    def url(self, path: str, port: int = 8000) -> str:
        return f"{self.server.url}/services/{self.task_id}/{port}{path}"

    def get(self, path: str, port: int = 8000, **more: Any) -> httpx2.Response:
        headers = {**self.auth, **more.pop("headers", {})}
        return httpx2.get(self.url(path, port), headers=headers, timeout=PATIENCE_S, **more)

    def head(self, path: str) -> httpx2.Response:
        return httpx2.head(self.url(path), headers=self.auth, timeout=PATIENCE_S)

    def post(self, path: str, content: bytes = b"") -> httpx2.Response:
        return httpx2.post(self.url(path), headers=self.auth, content=content, timeout=PATIENCE_S)

    @property
    def host(self) -> str:
        return f"8000-{self.task_id.removeprefix('run_')}.localhost:{urlsplit(self.server.url).port}"

    def by_name(self, path: str, *, method: str = "GET", host: str | None = None, **headers: str) -> httpx2.Response:
        """Asks by the name of the port, as a browser does."""
        sent = {"host": host or self.host, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return httpx2.request(method, self.server.url + path, headers=sent, timeout=PATIENCE_S)

    def ticket(self, **asked: Any) -> str:
        """Returns the path and query of a URL with a ticket."""
        with self.server.client() as client:
            url: str = client.open_service(self.task_id, 8000, **asked)["url"]
        assert url.startswith(f"http://{self.host}/")
        return url.removeprefix(f"http://{self.host}")

    def cookie(self) -> str:
        return self.by_name(self.ticket()).headers["set-cookie"].partition(";")[0]


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with Server(tmp_path_factory.mktemp("services") / "data") as server, Yard(server) as yard:
        yield yard


@pytest.fixture(scope="module")
def stranger(yard: Yard) -> str:
    """A token of another project."""
    asked = ("create", "stranger", "--project", "other", "--scopes", "run_code")
    argv = [sys.executable, "-m", "skillyard", "token", *asked, "--data-dir", str(yard.server.data_dir)]
    made = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    found = re.search(r"sky_[A-Za-z0-9_-]+", made.stdout)
    assert found, made.stdout + made.stderr
    return found[0]


def test_a_started_service_names_its_ports(yard: Yard) -> None:
    port = urlsplit(yard.server.url).port
    host = yard.host.partition(":")[0]
    assert yard.started["mode"] == "service"
    assert yard.started["exposed_endpoints"][0] == {
        "port": 8000, "path": f"/services/{yard.task_id}/8000/", "host": host, "url": f"http://{host}:{port}/",
    }  # fmt: skip


def test_services_are_listed_apart_from_other_tasks(yard: Yard) -> None:
    with yard.server.client() as client:
        task = client.run_cmd_async("acme.words.say", "true")["task_id"]
        until(lambda: client.task_status(yard.task_id)["startup_ready"])  # its ports may answer before its words come
        services = client.list_tasks(mode="service")["tasks"]
        others = client.list_tasks(mode="batch")["tasks"]
        both = client.list_tasks()["tasks"]
    assert [(row["task_id"], row["mode"], row["startup_ready"]) for row in services] == [
        (yard.task_id, "service", True)
    ]
    assert [row["task_id"] for row in others] == [task]
    assert [row["task_id"] for row in both] == [task, yard.task_id]


def test_nothing_of_ours_goes_in(yard: Yard) -> None:
    sent = {"cookie": "a=1", "x-forwarded-for": "1.2.3.4", "x_forwarded_for": "1", "proxy-authorization": "Basic eA==",
            "connection": "x-hop", "x-hop": "1", "x-own": "kept", "te": "trailers"}  # fmt: skip
    seen = yard.get("/headers?a=1&b=%2F", headers=sent).json()
    assert seen["path"] == "/headers?a=1&b=%2F"
    assert seen["headers"]["host"] == "localhost:8000"
    assert seen["headers"]["x-own"] == "kept"
    assert seen["headers"]["x-forwarded-prefix"] == f"/services/{yard.task_id}/8000"
    assert not seen["headers"].keys() & {
        "authorization",
        "cookie",
        "x-forwarded-for",
        "x_forwarded_for",
        "proxy-authorization",
        "x-hop",
        "te",
    }


def test_by_path_nothing_comes_out_that_speaks_for_our_host(yard: Yard) -> None:
    answer = yard.get("/speaks")
    assert answer.headers["content-security-policy"] == "sandbox"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-own"] == "kept"
    gone = ("set-cookie", "service-worker-allowed", "clear-site-data", "strict-transport-security", "alt-svc", "x-hop",
            "x-accel-redirect", "access-control-allow-origin", "refresh", "www-authenticate", "link")  # fmt: skip
    assert [name for name in gone if name in answer.headers] == []


@pytest.mark.parametrize(
    ("location", "seen"),
    [
        ("/next?a=1", "/next?a=1"),
        ("next", "/next"),
        ("http://localhost:8000/x", "/x"),
        ("http://127.0.0.1:8000/x", "/x"),
        ("//x", None),
        ("/../../../rpc", "/rpc"),
        ("/%2e%2e/%2E%2e/../rpc", None),
        ("/a/..%2f..%2frpc", None),
        ("/..\\..\\rpc", None),
        ("http://localhost:8001/x", None),
        ("http://9-0.localhost/x", None),
        ("http://u:p@localhost:8000/x", None),
        ("javascript:alert(1)", None),
    ],
)
def test_by_path_a_redirect_stays_in_the_service(yard: Yard, location: str, seen: str | None) -> None:
    answer = yard.get(f"/to?{quote(location, safe='')}")
    whole = None if seen is None else f"/services/{yard.task_id}/8000{seen}"
    assert (answer.status_code, answer.headers.get("location")) == (302, whole)


def test_bodies_go_both_ways_whole(yard: Yard) -> None:
    data = bytes(range(256)) * 20_000
    for body in (data, iter([data[:100], data[100:3_000_000], data[3_000_000:]])):
        answer = httpx2.post(yard.url("/echo"), headers=yard.auth, content=body, timeout=PATIENCE_S)
        assert answer.text == hashlib.sha256(data).hexdigest()
    assert len(yard.get("/large?200").content) == 200 * 65536
    assert httpx2.head(yard.url("/headers"), headers=yard.auth, timeout=PATIENCE_S).status_code in (200, 501)


def test_a_stream_that_never_ends_ends_with_its_caller(yard: Yard) -> None:
    for _ in range(70):  # more than one service may have at once
        with httpx2.stream("GET", yard.url("/stream"), headers=yard.auth, timeout=PATIENCE_S) as answer:
            assert next(answer.iter_bytes(4)) == b"tick"
    assert yard.get("/").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/endless-head",
        "/many-fields",
        "/bad-chunk",
        "/two-lengths",
        "/switch",
        "/interim",
        "/injected",
        "/not-http",
        "/nothing",
        "/parts",
        "/hidden-parts",
        "/status",
    ],
)
def test_a_malformed_answer_is_an_error_of_ours(yard: Yard, path: str) -> None:
    try:
        answer = yard.get(path, 8001)
    except httpx2.RemoteProtocolError:  # it was malformed behind its head
        assert path == "/bad-chunk"
    else:
        assert (answer.status_code, answer.json()["error"]["data"]["type"]) == (502, "BadGateway")
    assert yard.get("/").status_code == 200


def test_answers_are_written_anew(yard: Yard) -> None:
    with socket.create_connection(("127.0.0.1", urlsplit(yard.server.url).port or 0), PATIENCE_S) as sock:
        head = f"host: {urlsplit(yard.server.url).netloc}\r\nauthorization: Bearer {yard.server.token}\r\n"
        for path in ("/both", "/behind"):
            sock.sendall(f"GET /services/{yard.task_id}/8001{path} HTTP/1.1\r\n{head}\r\n".encode())
        sock.sendall(f"GET /healthz HTTP/1.1\r\n{head}connection: close\r\n\r\n".encode())
        said = b"".join(iter(lambda: sock.recv(65536), b""))
    assert said.count(b"HTTP/1.1 200 ") == 3
    assert b"extra" not in said
    assert said.rstrip().endswith(b'{"status":"ok"}')
    with pytest.raises(httpx2.RemoteProtocolError):
        yard.get("/cut", 8001)


def test_only_exposed_ports_of_ones_own_services_exist(yard: Yard, stranger: str) -> None:
    assert yard.get("/", 8002).status_code == 404
    assert yard.get("/", 99999).status_code == 404
    for path in (f"/services/{yard.task_id}/%38000/", f"/services/run_{'0' * 32}/8000/", "/services/x"):
        assert httpx2.get(yard.server.url + path, headers=yard.auth).status_code == 404
    theirs = httpx2.get(yard.url("/"), headers={"authorization": f"Bearer {stranger}"})
    none = httpx2.get(yard.server.url + f"/services/run_{'0' * 32}/8000/", headers=yard.auth)
    assert (theirs.status_code, theirs.text.replace(yard.task_id, f"run_{'0' * 32}")) == (404, none.text)
    assert httpx2.get(yard.url("/")).status_code == 401
    with yard.server.client() as client, pytest.raises(errors.RpcError, match="expose"):
        client.open_service(yard.task_id, 8002)
    named = yard.by_name("/", authorization=f"Bearer {stranger}")
    assert named.status_code == 404


def test_a_ticket_opens_one_port_once(yard: Yard) -> None:
    ticket = yard.ticket(path="/headers?x=1")
    other = yard.host.replace("8000-", "8001-")
    opened = yard.by_name(ticket)
    assert (opened.status_code, opened.headers["location"]) == (303, f"http://{yard.host}/headers?x=1")
    cookie, *attributes = opened.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(attributes)
    assert not any(word.lower().startswith("domain") for word in attributes)
    assert yard.by_name(ticket).status_code == 401
    seen = yard.by_name("/headers", cookie=f"mine=1; {cookie}; more=2").json()["headers"]
    assert seen["cookie"] == "mine=1; more=2"
    assert seen["host"] == yard.host
    for host in (other, yard.host.replace("8000-", "8002-"), f"8000-{'0' * 32}.localhost"):
        assert yard.by_name("/", host=host, cookie=cookie).status_code == 401
    assert yard.by_name("/", cookie="skillyard-service=guess").status_code == 401
    assert yard.by_name("/").status_code == 401


def test_a_ticket_is_for_its_own_port_and_for_get_alone(yard: Yard) -> None:
    assert yard.by_name(yard.ticket(), method="POST").status_code == 405
    assert yard.by_name(yard.ticket(), host=yard.host.replace("8000-", "8001-")).status_code == 401
    assert httpx2.get(yard.url(yard.ticket()), headers=yard.auth).status_code == 400
    opened = yard.by_name("//evil.example/" + yard.ticket().removeprefix("/"))
    assert opened.headers["location"].startswith(f"http://{yard.host}//evil.example/")


def test_a_host_that_is_spoofed_is_nobodys(yard: Yard) -> None:
    task = yard.task_id.removeprefix("run_")
    for host in (
        f"8000-{task}.localhost.evil.example",
        f"8000-{task}.evil.example",
        f"x.8000-{task}.localhost",
        f"8000-{task}.localhost:80@evil.example",
        f"8000-{task}.localhost:/evil",
        ".localhost",
    ):
        refused = yard.by_name("/", host=host, authorization=f"Bearer {yard.server.token}")
        assert (refused.status_code, "allowed_hosts" in refused.text) == (421, True)
    rpc = yard.by_name(
        "/rpc", method="POST", authorization=f"Bearer {yard.server.token}", content_type="application/json"
    )
    assert rpc.status_code != 401  # it is the service's own path
    assert b"jsonrpc" not in rpc.content


def test_other_sites_and_other_services_may_not_use_the_cookie(yard: Yard) -> None:
    cookie = yard.cookie()
    neighbour = f"http://8000-{'0' * 32}.localhost"
    assert yard.by_name("/", cookie=cookie, origin=f"http://{yard.host}").status_code == 200
    for origin in (neighbour, "null", "https://" + yard.host):
        assert yard.by_name("/", cookie=cookie, origin=origin).status_code == 403
    same_site = {"sec_fetch_site": "same-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "script"}
    assert yard.by_name("/", cookie=cookie, **same_site).status_code == 403
    frame = {"sec_fetch_site": "same-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"}
    assert yard.by_name("/", cookie=cookie, **frame).status_code == 403
    opened = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert yard.by_name("/", cookie=cookie, **opened).status_code == 200


def test_by_name_cookies_are_of_that_host_and_never_ours(yard: Yard) -> None:
    cookie = yard.cookie()
    answer = yard.by_name("/speaks", cookie=cookie)
    assert answer.headers["set-cookie"] == "a=1; Path=/"
    assert answer.headers["cache-control"] == "private, max-age=60"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert "frame-ancestors 'self'" in answer.headers["content-security-policy"]
    assert not {"clear-site-data", "alt-svc", "x-accel-redirect", "strict-transport-security"} & set(answer.headers)
    for bad in ("skillyard-service=x", "SKILLYARD-SERVICE=x; Path=/", "=skillyard-service=x", "skillyard-service"):
        assert "set-cookie" not in yard.by_name(f"/cookies?{quote(bad)}", cookie=cookie).headers


OFFER = f"upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: {KEY}\r\n"


def opened(yard: Yard, path: str, head: str, offer: str = OFFER) -> socket.socket:
    sock, said = switched(yard, path, head, offer)
    assert said[9:12] in (b"101", b"200"), said
    return sock


def switched(yard: Yard, path: str, head: str, offer: str = OFFER) -> tuple[socket.socket, bytes]:
    sock = socket.create_connection(("127.0.0.1", urlsplit(yard.server.url).port or 0), PATIENCE_S)
    sock.sendall(f"GET {path} HTTP/1.1\r\n{head}{offer}\r\n".encode())
    said = b""
    while b"\r\n\r\n" not in said and (data := sock.recv(65536)):
        said += data
    return sock, said


def test_a_websocket_is_a_stream_both_ways(yard: Yard) -> None:
    by_path = f"host: {urlsplit(yard.server.url).netloc}\r\nauthorization: Bearer {yard.server.token}\r\n"
    by_name = f"host: {yard.host}\r\ncookie: {yard.cookie()}\r\norigin: http://{yard.host}\r\n"
    for path, head in ((f"/services/{yard.task_id}/8000/ws", by_path), ("/ws", by_name)):
        sock, said = switched(yard, path, head)
        with sock:
            top, _, rest = said.partition(b"\r\n\r\n")
            assert top.startswith(b"HTTP/1.1 101 ")
            assert ACCEPT.encode() in top
            assert b"set-cookie" not in top.lower()
            while len(rest) < len(b"first"):
                rest += sock.recv(65536)
            assert rest == b"first"
            data = b"abc" * 100_000
            sock.sendall(data)
            back = b""
            while len(back) < len(data):
                back += sock.recv(65536)
            assert back == data.upper()


def test_a_websocket_of_another_origin_or_that_the_service_forges_is_refused(yard: Yard) -> None:
    head = f"host: {yard.host}\r\ncookie: {yard.cookie()}\r\norigin: http://evil.example\r\n"
    sock, said = switched(yard, "/ws", head)
    sock.close()
    assert said.startswith(b"HTTP/1.1 403 ")
    by_path = f"host: {urlsplit(yard.server.url).netloc}\r\nauthorization: Bearer {yard.server.token}\r\n"
    sock, said = switched(yard, f"/services/{yard.task_id}/8001/switch", by_path)
    sock.close()
    assert said.startswith(b"HTTP/1.1 502 ")


def test_a_revoked_token_takes_its_cookies_along(yard: Yard) -> None:
    """The cookie is that of the owner here, so another server has it. What goes on is ended within seconds."""
    assert yard.by_name("/", cookie=yard.cookie()).status_code == 200
    with Server(yard.server.data_dir.parent / "other") as server:
        other = Yard(server)
        cookie = other.cookie()
        by_path = f"host: {urlsplit(server.url).netloc}\r\nauthorization: Bearer {server.token}\r\n"
        by_name = f"host: {other.host}\r\ncookie: {cookie}\r\norigin: http://{other.host}\r\n"
        ask = "connection: Upgrade\r\nupgrade: skillyard-tcp\r\n"
        goes_on = [
            opened(other, f"/services/{other.task_id}/8000/ws", by_path),
            opened(other, "/ws", by_name),
            opened(other, f"/services/{other.task_id}/8000/", by_path + ask, offer=""),
            opened(other, "/stream", by_name, offer=""),
        ]
        argv = [sys.executable, "-m", "skillyard", "token", "revoke", "owner", "--data-dir", str(server.data_dir)]
        assert subprocess.run(argv, capture_output=True, timeout=60).returncode == 0
        assert other.by_name("/", cookie=cookie).status_code == 401
        for sock in goes_on:
            with sock, suppress(ConnectionError):
                while sock.recv(65536):
                    continue


def test_ports_answer_again_after_the_death_of_the_server(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as first:
        yard = Yard(first, restart="on-failure")
        task_id = yard.task_id
        first.kill()
    with Server(tmp_path / "data") as second, second.client() as client:
        yard.server = second
        yard.until_it_answers()
        assert yard.get("/").json()["path"] == "/"
        assert yard.by_name("/", cookie=yard.cookie()).status_code == 200
        until(lambda: client.task_status(task_id)["startup_ready"])
        told = client.task_status(task_id)
        assert (told["mode"], told["startup_ready"], told["exposed_endpoints_active"]) == ("service", True, True)
        assert told["exposed_endpoints"][1]["path"] == f"/services/{task_id}/8001/"
        assert told["service"] == {"ready": True, "restart": "on-failure", "restarts": 0, "exit_code": None}
        assert client.task_cancel(task_id)["canceled"]
        assert not client.task_status(task_id)["exposed_endpoints_active"]
        assert yard.get("/").status_code == 404


def test_a_service_that_is_not_ready_in_its_own_time_has_failed(yard: Yard) -> None:
    """The time is that of the call, and a program that listens is not ready before its output says so."""
    program = "import socket, time; sock = socket.create_server(('127.0.0.1', 8000)); time.sleep(600)"
    asked = {"skill_name": "acme.words.say", "command": program, "language": "python", "expose_ports": [8000]}
    with yard.server.client() as client:
        late = {**asked, "ready_pattern": "^never said", "startup_timeout_sec": 0.5}
        task_id = client.call("skills.run_service", late)["task_id"]
        ended = client.task_watch(task_id, timeout_sec=PATIENCE_S)
        assert (ended["status"], ended["reason"], ended["startup_ready"]) == ("failed", "timeout", False)
        assert "startup_timeout_sec" in ended["error_message"]
        assert ended["finished_at"] - ended["started_at"] < 20, "not the sixty seconds of a call that says nothing"


def test_a_tunnel_is_for_programs_with_a_token(yard: Yard, stranger: str) -> None:
    port = urlsplit(yard.server.url).port or 0
    ask = "connection: Upgrade\r\nupgrade: skillyard-tcp\r\n"
    mine, theirs = (f"authorization: Bearer {token}\r\n" for token in (yard.server.token, stranger))
    for head, status in (
        (mine + ask, b"101"),
        (theirs + ask, b"404"),
        (ask, b"401"),
        (mine + ask + f"origin: {yard.server.url}\r\n", b"400"),
        (mine + ask + "content-length: 1\r\n", b"400"),
        (mine + "upgrade: skillyard-tcp\r\n", b"400"),
    ):
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as sock:
            where = f"GET /services/{yard.task_id}/8000/ HTTP/1.1\r\nhost: {urlsplit(yard.server.url).netloc}\r\n"
            sock.sendall(f"{where}{head}\r\n".encode())
            assert sock.recv(65536).startswith(b"HTTP/1.1 " + status), head
    with socket.create_connection(
        ("127.0.0.1", port), PATIENCE_S
    ) as sock:  # by name there are only HTTP and websockets
        sock.sendall(f"GET / HTTP/1.1\r\nhost: {yard.host}\r\ncookie: {yard.cookie()}\r\n{ask}\r\n".encode())
        assert sock.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_a_service_of_a_session_goes_on_beside_calls_and_ends_with_it(yard: Yard) -> None:
    asked: dict[str, Any] = {"skill_name": "acme.words.say", "session_id": "site", "limits": {"memory_mb": 128}}
    where = f"{yard.server.url}/services/"
    with yard.server.client() as client:
        assert client.run_cmd(command="echo one > /workspace/page.txt", **asked)["status"] == "succeeded"
        command = "cd /workspace && exec python3 -m http.server 8000"
        try:
            task_id = client.run_service(command=command, expose_ports=[8000], **asked)["task_id"]
        except errors.RpcError as error:
            if "keeping" not in str(error):
                raise
            pytest.skip(f"this host keeps no service in a session: {error}")

        def page() -> httpx2.Response:
            return httpx2.get(f"{where}{task_id}/8000/page.txt", headers=yard.auth, timeout=PATIENCE_S)

        until(lambda: page().status_code == 200)
        assert page().text == "one\n"
        ran = client.run_cmd(command="echo two > /workspace/page.txt; sleep 1000 & echo $!", wait_ms=30_000, **asked)
        assert ran["status"] == "succeeded", ran
        assert page().text == "two\n"
        looked = client.run_cmd(command="ls /proc | grep -c '^[0-9]'; ! pgrep sleep", wait_ms=30_000, **asked)
        assert looked["status"] == "succeeded", looked
        client.end_session("site")
        assert client.task_watch(task_id, timeout_sec=60)["status"] == "canceled"
        assert page().status_code == 404
