"""Tries to reach what belongs to others: by ids, tokens, hosts, ports, URLs, and from inside of a sandbox."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from e2b import Sandbox, SandboxNotFoundException
from e2b.exceptions import SandboxException, SandboxUnreachableException

from skillyard.domain.principal import Scope
from skillyard.faces.http.server import MAX_CONNECTIONS
from tests import waiting
from tests.faces.e2b.conftest import Yard

Until = Callable[[Callable[[], object]], None]
LIST = "/process.Process/List"


def raw(yard: Yard, method: str, path: str, headers: list[tuple[str, str]], body: bytes = b"") -> Any:
    """Sends a request as it is, with fields of the same name too."""
    place = urlsplit(yard.server.url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port or 0, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        if body:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        answer = connection.getresponse()
        answer.text = answer.read().decode(errors="replace")  # type: ignore[attr-defined]
        return answer
    finally:
        connection.close()


def host_of(yard: Yard) -> str:
    return urlsplit(yard.server.url).netloc


@pytest.fixture(scope="module")
def mallory(yard: Yard) -> str:
    """The token of another principal."""
    return yard.token_of("other")


def test_sandboxes_of_another_principal_do_not_exist(yard: Yard, sandbox: Any) -> None:
    token = yard.token_of("mallory")
    id = sandbox.sandbox_id
    assert Sandbox.list(**yard.opts_of(token)).next_items() == []
    for work in (Sandbox.connect, Sandbox.get_info):
        with pytest.raises(SandboxNotFoundException):
            work(id, **yard.opts_of(token))
    assert not Sandbox.kill(id, **yard.opts_of(token))
    with pytest.raises(SandboxNotFoundException):
        Sandbox.set_timeout(id, 1, **yard.opts_of(token))
    for method, path in (("POST", "pause"), ("PUT", "network"), ("POST", "refreshes"), ("POST", "snapshots")):
        assert yard.api(method, f"/sandboxes/{id}/{path}", token, json={}).status_code == 404
    assert sandbox.is_running()
    ours = yard.api("GET", f"/sandboxes/{id}").json()
    theirs = yard.api("GET", f"/sandboxes/{id}", token)
    assert theirs.json() == yard.api("GET", "/sandboxes/" + "0" * 32, token).json() | {
        "message": theirs.json()["message"]
    }
    assert ours["envdAccessToken"] not in theirs.text


def test_a_run_that_is_no_sandbox_is_not_one(yard: Yard) -> None:
    with yard.server.client() as client:
        run = client.run_code("x = 1")
    assert yard.api("GET", f"/sandboxes/{run['run_id'].removeprefix('run_')}").status_code == 404


@pytest.mark.parametrize("id", ["", "%2e%2e", "run_x", "x" * 60, "*", "A", "%00", "é", "a/b", "a%2Fb"])
def test_ids_that_cannot_be_are_not_found(yard: Yard, id: str) -> None:
    answer = yard.api("GET", f"/sandboxes/{id}")
    assert answer.status_code in (200, 400, 404)
    if answer.status_code == 200:
        assert isinstance(answer.json(), list)


def test_a_token_without_the_right_makes_nothing(yard: Yard) -> None:
    token = yard.token_of("reader", Scope.DISCOVER)
    with pytest.raises(SandboxException, match=r"403: .*run_code"):
        Sandbox.create(**yard.opts_of(token))


def test_our_tokens_open_no_daemon_and_its_token_opens_no_api(yard: Yard, sandbox: Any) -> None:
    assert yard.envd(sandbox, LIST, {}).status_code == 200
    for wrong in ("", yard.server.token, sandbox.traffic_access_token, sandbox._envd_access_token[:-1]):
        answer = yard.envd(sandbox, LIST, {}, X_Access_Token=wrong)
        assert answer.status_code == 401, wrong
        assert answer.json()["code"] == "unauthenticated"
    assert yard.api("GET", "/v2/sandboxes", sandbox._envd_access_token).status_code == 401
    bearer = {"Authorization": f"Bearer {sandbox._envd_access_token}"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "list_skills", "params": {}}
    assert yard.ask("POST", "/rpc", bearer, json=body).status_code == 401
    assert yard.ask("GET", "/v2/sandboxes", {"Authorization": f"Bearer {yard.server.token}"}).status_code == 401


def test_the_token_of_one_sandbox_opens_no_other(yard: Yard, sandbox: Any) -> None:
    other = yard.create()
    try:
        headers = {"E2b_Sandbox_Id": other.sandbox_id}
        assert yard.envd(sandbox, LIST, {}, **headers).status_code == 401
        url = sandbox.download_url("/etc/passwd")
        mixed = {"E2b-Sandbox-Id": other.sandbox_id}
        assert yard.ask("GET", url.removeprefix(yard.server.url), {}).status_code == 200
        assert yard.ask("GET", url.removeprefix(yard.server.url), mixed).status_code == 401
        port = {"Host": other.get_host(8000), "E2b-Traffic-Access-Token": sandbox.traffic_access_token}
        assert yard.ask("GET", "/", port).status_code == 401
    finally:
        other.kill()


def test_a_revoked_token_closes_its_sandboxes(yard: Yard) -> None:
    token = yard.token_of("leaver")
    made = Sandbox.create(**yard.opts_of(token))
    assert made.commands.run("echo in").stdout == "in\n"
    url = made.download_url("/etc/passwd").removeprefix(yard.server.url)
    yard.revoke("leaver")
    assert yard.envd(made, LIST, {}).status_code == 401
    assert yard.ask("GET", url, {}).status_code == 401
    traffic = {"Host": made.get_host(8000), "E2b-Traffic-Access-Token": str(made.traffic_access_token)}
    assert yard.ask("GET", "/", traffic).status_code == 401


def test_a_revoked_token_cuts_what_is_open(yard: Yard) -> None:
    made = Sandbox.create(**yard.opts_of(yard.token_of("cut")))
    handle = made.commands.run("sleep 600", background=True, timeout=0)
    yard.revoke("cut")
    with pytest.raises(SandboxUnreachableException):
        handle.wait()


def test_hosts_and_headers_name_one_sandbox(yard: Yard, sandbox: Any) -> None:
    id, token, body = sandbox.sandbox_id, sandbox._envd_access_token, b"{}"
    usual = [("X-Access-Token", token), ("Content-Type", "application/json")]
    named: str = f"49983-{id}.localhost:{urlsplit(yard.server.url).port}"
    assert raw(yard, "POST", LIST, [("Host", named), *usual], body).status == 200
    for headers, status in (
        ([("Host", named), ("E2b-Sandbox-Id", "0" * 32), *usual], 400),
        ([("Host", f"49983-{id}.evil.example"), *usual], 421),
        ([("Host", f"49983-{id}.localhost.evil.example"), *usual], 421),
        ([("Host", "evil.example"), ("E2b-Sandbox-Id", id), *usual], 421),
        ([("Host", host_of(yard)), ("E2b-Sandbox-Id", id), ("Origin", "http://evil.example"), *usual], 403),
        ([("Host", named), ("Origin", "http://evil.example"), *usual], 403),
        ([("Host", host_of(yard)), ("E2b-Sandbox-Id", id), ("E2b-Sandbox-Port", "8000"), *usual], 502),
        ([("Host", host_of(yard)), ("E2b-Sandbox-Id", id), ("E2b-Sandbox-Port", "x"), *usual], 400),
        ([("Host", f"49983-{'0' * 32}.localhost"), *usual], 502),
    ):
        assert raw(yard, "POST", LIST, headers, body).status == status, headers
    keys = [("Host", host_of(yard)), ("X-API-KEY", "wrong"), ("X-API-KEY", yard.server.token)]
    assert raw(yard, "GET", "/v2/sandboxes", keys).status == 401


def test_names_of_a_daemon_do_not_reach_our_own_paths(yard: Yard, sandbox: Any) -> None:
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "X-Access-Token": sandbox._envd_access_token}
    for path in ("/rpc", "/mcp", "/blobs", "/skills", "/metrics", "/services/run_x/80/", "/nothing"):
        answer = yard.ask("POST", path, headers, json={})
        assert answer.status_code == 501, path


def test_ports_need_a_token(yard: Yard, sandbox: Any, until: Until) -> None:
    handle = sandbox.commands.run("mkdir -p www && cd www && echo served > a && python3 -m http.server 8123", True)
    port = {"Host": sandbox.get_host(8123)}
    mine = port | {"E2b-Traffic-Access-Token": sandbox.traffic_access_token}
    until(lambda: yard.ask("GET", "/a", mine).status_code == 200)
    assert yard.ask("GET", "/a", mine).text == "served\n"
    assert yard.ask("GET", "/a", port | {"Authorization": f"Bearer {yard.server.token}"}).text == "served\n"
    assert yard.ask("GET", "/a", port).status_code == 401
    assert yard.ask("GET", "/a", port | {"E2b-Traffic-Access-Token": "x"}).status_code == 401
    other = yard.token_of("nosy")
    assert yard.ask("GET", "/a", port | {"Authorization": f"Bearer {other}"}).status_code == 404
    handle.kill()
    until(lambda: yard.ask("GET", "/a", mine).status_code == 503)


def test_a_port_learns_no_token(yard: Yard, sandbox: Any, until: Until) -> None:
    program = (
        "import http.server\n"
        "class Echo(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers(); self.wfile.write(str(self.headers).encode())\n"
        "http.server.HTTPServer(('127.0.0.1', 8124), Echo).serve_forever()\n"
    )
    sandbox.files.write("echo.py", program)
    handle = sandbox.commands.run("python3 echo.py", background=True)
    mine = {"Host": sandbox.get_host(8124), "E2b-Traffic-Access-Token": sandbox.traffic_access_token, "X-Mine": "1"}
    until(lambda: yard.ask("GET", "/", mine).status_code == 200)
    seen = yard.ask("GET", "/", mine).text
    assert "x-mine" in seen.lower()
    assert sandbox.traffic_access_token not in seen
    handle.kill()


def test_nothing_inside_reaches_the_daemon_or_the_server(yard: Yard, sandbox: Any) -> None:
    port = urlsplit(yard.server.url).port
    look = (
        "import socket\n"
        f"for place in (('127.0.0.1', 49983), ('127.0.0.1', 49999), ('127.0.0.1', {port})):\n"
        "    try:\n"
        "        socket.create_connection(place, 2); print('open', place)\n"
        "    except OSError as error:\n"
        "        print('closed')\n"
    )
    sandbox.files.write("look.py", look)
    assert sandbox.commands.run("python3 look.py").stdout == "closed\n" * 3
    told = sandbox.commands.run("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; cat /proc/*/cmdline").stdout
    for secret in (yard.server.token, sandbox._envd_access_token, sandbox.traffic_access_token):
        assert secret not in told


def test_links_and_devices_give_no_more_than_the_sandbox_has(sandbox: Any) -> None:
    files = sandbox.files
    sandbox.commands.run("ln -sf /etc/shadow shadow; ln -sf / root; mkfifo pipe; ln -sf loop loop; ln -sf pipe to-pipe")
    for path in ("shadow", "pipe", "loop", "to-pipe", "/dev/null", "/dev/zero", "/proc/1/mem", "/proc/kcore"):
        with pytest.raises(Exception, match=r".") as refused:
            files.read(path)
        assert type(refused.value).__module__.startswith("e2b"), path
    for path in ("/etc/passwd", "/usr/bin/x", "/dev/x", "/proc/self/comm", "/skills/x", "root/etc/x", "/x"):
        with pytest.raises(SandboxException):
            files.write(path, "no")
    for path in ("/", "/home/user", "/workspace", "/tmp", "/etc", "/proc/1"):
        with pytest.raises(SandboxException):
            files.remove(path)
    files.write("link-target", "kept")
    sandbox.commands.run("ln -sf link-target through")
    files.write("through", "replaced")
    files.remove("root")
    assert files.exists("/etc/passwd")
    assert sandbox.commands.run("cat link-target").stdout in ("kept", "replaced")


def test_a_program_for_files_that_lies_is_not_believed(sandbox: Any) -> None:
    """Foreign code may change what our program inside meets; it cannot make the server say more than one entry."""
    sandbox.commands.run(
        "mkdir -p names && cd names && touch \"$(printf 'a\\nb')\" '{\"ok\": {}}' \"$(printf 'x\\377y')\""
    )
    assert len(sandbox.files.list("names")) == 3
    assert sandbox.files.get_info('names/{"ok": {}}').name == '{"ok": {}}'


def test_signatures_are_made_of_every_part(yard: Yard, sandbox: Any) -> None:
    token = sandbox._envd_access_token

    def signed(path: str, operation: str, key: str, user: str = "", expires: str = "") -> str:
        parts = [path, operation, user, key, *([expires] if expires else [])]
        digest = base64.b64encode(hashlib.sha256(":".join(parts).encode()).digest()).rstrip(b"=").decode()
        more = f"&signature_expiration={expires}" if expires else ""
        return f"/files?path={quote(path)}&signature={quote('v1_' + digest)}{more}"

    assert yard.ask("GET", signed("/etc/passwd", "read", token), {}).status_code == 200
    assert yard.ask("GET", signed("/etc/passwd", "read", "undefined"), {}).status_code == 401
    assert yard.ask("GET", signed("/etc/passwd", "read", ""), {}).status_code == 401
    assert yard.ask("GET", signed("/etc/passwd", "read", yard.server.token), {}).status_code == 401
    past, soon = str(int(time.time()) - 10), str(int(time.time()) + 60)
    assert yard.ask("GET", signed("/etc/passwd", "read", token, expires=soon), {}).status_code == 200
    for expires in (past, "-1", "1e99", "9" * 30, "soon"):
        assert yard.ask("GET", signed("/etc/passwd", "read", token, expires=expires), {}).status_code == 401
    assert yard.ask("GET", signed("/etc/passwd", "read", token, user="root") + "&username=root", {}).status_code == 401


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"{", b'{"templateID": 5}', b'{"metadata": [1]}', b'{"timeout": "1"}', b"\xff",
             b'{"timeout": 1e400}', b"[" * 5000, b'{"envVars": {"A": 1}}', b'{"network": []}', b'{"network": 5}',
             b'{"network": {"allowOut": "x"}}', b'{"autoPause": 1}', b'{"timeout": true}']
)  # fmt: skip
def test_bad_orders_are_refused(yard: Yard, body: bytes) -> None:
    answer = yard.api("POST", "/v2/sandboxes", content=body)
    if answer.status_code == 201:
        assert Sandbox.kill(answer.json()["sandboxID"], **yard.opts)
        assert body == b""
    else:
        assert answer.status_code == 400, answer.text
        assert answer.json()["code"] == 400


def test_watchers_are_bounded_and_ones_own(yard: Yard, sandbox: Any) -> None:
    other = yard.create()
    try:
        handle = sandbox.files.watch_dir("/tmp")
        about = {"watcherId": handle._watcher_id}
        assert yard.envd(other, "/filesystem.Filesystem/GetWatcherEvents", about).status_code == 404
        assert yard.envd(other, "/filesystem.Filesystem/RemoveWatcher", about).status_code == 404
        handle.stop()
        codes = [
            yard.envd(other, "/filesystem.Filesystem/CreateWatcher", {"path": "/tmp"}).status_code for _ in range(33)
        ]
        assert codes == [200] * 32 + [429]
        assert other.commands.run("echo lives").stdout == "lives\n"
    finally:
        other.kill()


CALLS: tuple[tuple[str, str, Any], ...] = (
    ("GET", "", None), ("DELETE", "", None), ("POST", "/connect", {"timeout": 5}), ("POST", "/timeout", {"timeout": 5}),
    ("POST", "/refreshes", {"duration": 5}), ("PUT", "/network", {}), ("PUT", "/network", {"allowOut": ["x.com"]}),
    ("POST", "/pause", {}), ("POST", "/pause", {"memory": False}), ("POST", "/resume", {}), ("GET", "/metrics", None),
    ("POST", "/snapshots", {}), ("POST", "/fork", {}), ("GET", "/logs", None), ("POST", "/timeout", {}),
    ("POST", "/connect", {"timeout": -1}), ("POST", "/pause", {"memory": 5}),
)  # fmt: skip
"""Each call for one sandbox, good and bad."""


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
def test_the_sandbox_of_another_answers_as_one_that_is_not(
    yard: Yard, sandbox: Any, mallory: str, method: str, path: str, body: Any
) -> None:
    answers = []
    for id in (sandbox.sandbox_id, "0" * 32):
        answer = yard.api(method, f"/sandboxes/{id}{path}", mallory, json=body)
        headers = {name: value for name, value in answer.headers.items() if name not in ("date", "content-length")}
        answers.append((answer.status_code, answer.text.replace(id, "ID"), headers))
    assert answers[0] == answers[1]
    assert answers[0][0] in (400, 404)


def test_programs_and_contexts_of_another_sandbox_are_not_there(yard: Yard, sandbox: Any, mallory: str) -> None:
    mine = Sandbox.create(timeout=60, **yard.opts_of(mallory))
    try:
        handle = sandbox.commands.run("sleep 100", background=True, stdin=True)
        calls: tuple[tuple[str, dict[str, Any]], ...] = (
            ("SendInput", {"input": {"stdin": "eA=="}}),
            ("SendInput", {"input": {"pty": "eA=="}}),
            ("SendSignal", {"signal": "SIGNAL_SIGKILL"}),
            ("CloseStdin", {}),
            ("Update", {"pty": {"size": {"rows": 1, "cols": 1}}}),
        )
        for call, more in calls:
            told = yard.envd(mine, f"/process.Process/{call}", {"process": {"pid": handle.pid}, **more})
            assert told.status_code == 404, call
        assert handle.pid in {each.pid for each in sandbox.commands.list()}
        ports = {"E2b-Sandbox-Port": "49999", "X-Access-Token": str(mine._envd_access_token)}
        ports["E2B-Traffic-Access-Token"] = str(mine.traffic_access_token)
        made = yard.ask("POST", "/contexts", {"E2b-Sandbox-Id": mine.sandbox_id, **ports}, json={})
        assert made.status_code == 200
        theirs = {"E2b-Sandbox-Id": sandbox.sandbox_id, **ports}
        assert yard.ask("POST", "/execute", theirs, json={"code": "1"}).status_code == 401
        assert yard.ask("DELETE", f"/contexts/{made.json()['id']}", theirs).status_code == 401
        assert handle.kill()
    finally:
        mine.kill()


def test_one_who_floods_leaves_room_for_others(yard: Yard, mallory: str) -> None:
    greedy = yard.token_of("greedy")
    made: list[Any] = []
    try:
        refusal = ""
        while not refusal and len(made) < 30:
            try:
                made.append(Sandbox.create(timeout=60, **yard.opts_of(greedy)))
            except SandboxException as error:
                refusal = str(error)
        assert "services" in refusal
        other = Sandbox.create(timeout=60, **yard.opts_of(mallory))
        assert other.commands.run("echo lives").stdout == "lives\n"
        assert other.kill()
    finally:
        for each in made:
            each.kill()


def test_streams_of_one_principal_leave_connections_for_others(yard: Yard, mallory: str) -> None:
    """Each holds a connection for as long as its client likes, and a server has so many for everybody."""
    most = MAX_CONNECTIONS // 4
    made = Sandbox.create(timeout=300, **yard.opts_of(yard.token_of("stayer")))
    try:
        program = made.commands.run("cat", background=True, stdin=True, timeout=0)
        with ExitStack() as stack:
            streams = [stack.enter_context(_stream(yard, made, program.pid)) for _ in range(most - 1)]
            assert {stream.getresponse().status for stream in streams} == {200}
            for stay in (lambda: made.commands.connect(program.pid), lambda: made.commands.run("true")):
                with pytest.raises(SandboxException, match=f"one principal has at most {most} of them open"):
                    stay()
            assert made.commands.list(), "what does not stay is answered"
            other = Sandbox.create(timeout=60, **yard.opts_of(mallory))
            assert other.commands.run("echo lives").stdout == "lives\n"
            assert other.kill()
        assert waiting.until(lambda: _ran(made), 30.0) == "again\n"
    finally:
        made.kill()


@contextmanager
def _stream(yard: Yard, sandbox: Any, pid: int) -> Iterator[http.client.HTTPConnection]:
    """A client that is connected to a program."""
    connection = http.client.HTTPConnection(host_of(yard), timeout=60)
    message = json.dumps({"process": {"pid": pid}}).encode()
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "X-Access-Token": sandbox._envd_access_token}
    headers["Content-Type"] = "application/connect+json"
    connection.request("POST", "/process.Process/Connect", b"\0" + len(message).to_bytes(4) + message, headers)
    try:
        yield connection
    finally:
        connection.close()


def _ran(sandbox: Any) -> str:
    try:
        return str(sandbox.commands.run("echo again").stdout)
    except SandboxException:
        return ""


def test_a_full_store_of_files_harms_its_own_sandbox_alone(yard: Yard, sandbox: Any) -> None:
    made = yard.create(timeout=60)
    made.commands.run(
        "head -c 2G /dev/zero > /tmp/full; i=0; while : > /tmp/f$i; do i=$((i+1)); done 2>/dev/null; true"
    )
    with pytest.raises(SandboxException):
        made.files.write("more", b"x" * 2**20)
    assert made.commands.run("echo lives").stdout == "lives\n"
    assert sandbox.files.write("kept", "text").path == "/home/user/kept"
    assert made.kill()
