"""Connections into a sandbox that serve several requests: whose they are, and which ends spoil them."""

from __future__ import annotations

import io
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.crash.server import Server
from tests.faces.server.test_parts import until
from tests.faces.server.test_services import PATIENCE_S, Yard

pytestmark = pytest.mark.timeout(300)

PROGRAM = r"""
import itertools, socket, threading, time

numbers, posts, late = itertools.count(1), itertools.count(1), []
POISON = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison"

def answer(body, more=b""):
    return b"HTTP/1.1 200 OK\r\n" + more + b"content-length: %d\r\n\r\n" % len(body) + body

def parts(body, more=b""):
    head = b"HTTP/1.1 200 OK\r\n" + more + b"transfer-encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)

def serve(peer, number):
    with peer:
        talk(peer, number)

def talk(peer, number):
    data, served = b"", 0
    while True:
        while b"\r\n\r\n" not in data:
            if not (got := peer.recv(65536)):
                return
            data += got
        head, _, data = data.partition(b"\r\n\r\n")
        method, path, _ = head.split(b"\r\n")[0].split(b" ")
        served += 1
        if path == b"/dies" and served > 1:
            return  # read, and not answered: nobody can tell whether it was done
        said = b"%d" % number
        if path == b"/extra":
            peer.sendall(answer(said) + POISON)
        elif path == b"/later":
            late.append(peer)
            peer.sendall(answer(said))
        elif path == b"/now":
            for other in late:
                other.sendall(POISON)
            late.clear()
            time.sleep(0.2)  # a busy kernel delivers what was sent first as the last
            peer.sendall(answer(said))
        elif path == b"/ends":
            peer.sendall(answer(said))
            return
        elif path == b"/says-end":
            peer.sendall(answer(said, b"connection: x, Close\r\n"))
        elif path == b"/old":
            peer.sendall(answer(said).replace(b"/1.1", b"/1.0"))
        elif path == b"/both":
            peer.sendall(parts(said, b"content-length: 99\r\n"))
        elif path == b"/parts":
            peer.sendall(parts(said))
        elif path == b"/head" and method == b"HEAD":
            peer.sendall(answer(b"body that is none"))
        elif path == b"/early":  # before it has the body
            peer.sendall(answer(said))
            while peer.recv(65536):
                pass
            return
        elif method == b"POST":
            length = int([line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")][0][15:])
            while len(data) < length:
                data += peer.recv(65536)
            data = data[length:]
            peer.sendall(answer(said + b" %d" % next(posts)))
        else:
            peer.sendall(answer(said))

server = socket.create_server(("127.0.0.1", 8000))
threading.Thread(target=socket.create_server(("127.0.0.1", 8001)).accept, daemon=True).start()
print("serving", flush=True)
while True:
    peer = server.accept()[0]
    threading.Thread(target=serve, args=(peer, next(numbers)), daemon=True).start()
"""


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with Server(tmp_path_factory.mktemp("connections") / "data") as server, Yard(server, command=PROGRAM) as yard:
        yield yard


def token(yard: Yard, name: str, *more: str) -> dict[str, str]:
    """Returns the header of a token of the same project."""
    argv = [sys.executable, "-m", "skillyard", "token", "create", name, "--scopes", "run_code", "--agents", "*", *more]
    made = subprocess.run([*argv, "--data-dir", str(yard.server.data_dir)], capture_output=True, text=True, timeout=60)
    found = re.search(r"sky_[A-Za-z0-9_-]+", made.stdout)
    assert found, made.stdout + made.stderr
    return {"authorization": f"Bearer {found[0]}"}


def number(yard: Yard, path: str = "/who") -> str:
    answer = yard.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_a_connection_serves_one_request_after_another(yard: Yard) -> None:
    until(lambda: len({number(yard), number(yard), number(yard, "/parts"), number(yard)}) == 1)


@pytest.mark.parametrize("path", ["/extra", "/ends", "/says-end", "/old", "/both"])
def test_a_doubtful_end_is_the_last_of_its_connection(yard: Yard, path: str) -> None:
    spoilt = number(yard, path)
    after = [number(yard) for _ in range(3)]
    assert spoilt not in after
    assert "poison" not in after


def test_bytes_that_nobody_asked_for_are_nobodys_answer(yard: Yard) -> None:
    spoilt = number(yard, "/later")
    assert yard.post("/now").text != spoilt  # a request with a body has a connection of its own
    after = [number(yard) for _ in range(3)]
    assert "poison" not in after
    assert spoilt not in after
    assert yard.head("/head").status_code == 200
    assert number(yard).isdigit()


def test_an_ended_connection_costs_no_request_and_repeats_none(yard: Yard) -> None:
    first = number(yard)
    again = number(yard, "/dies")
    assert (again.isdigit(), again == first) == (True, False)
    told = [yard.post("/count").text.split() for _ in range(3)]
    assert [int(count) for _, count in told] == [1, 2, 3]
    assert len({connection for connection, _ in told}) == 3
    early = yard.post("/early", b"x" * 5_000_000)
    assert early.text.isdigit()
    assert number(yard) != early.text


def test_others_have_connections_of_their_own(yard: Yard) -> None:
    theirs = token(yard, "second")

    def both() -> tuple[str, str, str]:
        mine, other = number(yard), httpx2.get(yard.url("/who"), headers=theirs, timeout=PATIENCE_S)
        assert (other.status_code, other.text == mine) == (200, False)
        return mine, other.text, number(yard)

    until(lambda: len(set(both())) == 2)


def test_a_token_without_the_skill_has_no_port_of_its_services(yard: Yard) -> None:
    for skills, status in (("acme.*", 200), ("other.*", 404)):
        theirs = token(yard, f"for-{skills[:-2]}", "--skills", skills)
        assert httpx2.get(yard.url("/who"), headers=theirs, timeout=PATIENCE_S).status_code == status


def test_inputs_of_a_service_arrive_and_its_outputs_are_collected(yard: Yard) -> None:
    with yard.server.client() as client:
        started = client.run_service(
            "acme.words.say",
            "cat given.txt > made.txt; echo ready",
            inputs=[{"artifact_id": client.put_blob(b"from outside", "text/plain").blob_id, "mount_path": "given.txt"}],
            outputs=[{"path": "made.txt", "save_as": "kept.txt"}, {"path": "missing.txt"}],
            ready_pattern="^ready",
            limits={"memory_mb": 64},
        )
        ended = client.task_watch(started["task_id"], timeout_sec=60)
        assert (ended["mode"], ended["status"]) == ("service", "succeeded"), ended
        (made,) = ended["created_artifacts"]
        assert (made["filename"], [each["path"] for each in ended["output_errors"]]) == (
            "kept.txt",
            ["skill/missing.txt"],
        )
        sink = io.BytesIO()
        client.get_blob(made["artifact_id"], sink)
        assert sink.getvalue() == b"from outside"


DRIPS = r"""
import socket, time

sock = socket.create_server(("127.0.0.1", 8000))
print("serving", flush=True)
while True:
    peer, _ = sock.accept()
    with peer:
        try:
            if peer.recv(65536).startswith(b"GET / "):
                peer.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
                continue
            peer.sendall(b"HTTP/1.1 200 OK\r\nx-long: ")
            while True:
                peer.sendall(b"y")
                time.sleep(0.3)
        except OSError:
            pass
"""


def test_a_head_that_drips_holds_no_connection_beyond_the_bound(tmp_path: Path) -> None:
    with Server(tmp_path / "data", SKILLYARD_SERVICES__ANSWER_S="2") as server, Yard(server, command=DRIPS) as yard:
        answer = yard.get("/drips")
    assert (answer.status_code, answer.json()["error"]["data"]["type"]) == (504, "GatewayTimeout")


@pytest.mark.parametrize(
    ("line", "hosts"),
    [
        ("GET /who HTTP/1.1", ["{mine}", "{server}"]),
        ("GET /who HTTP/1.1", ["{server}", "{mine}"]),
        ("GET http://{mine}/who HTTP/1.1", ["{mine}"]),
        ("GET http://{mine}/who HTTP/1.1", ["{server}"]),
        ("GET /who HTTP/1.1", ["{name}.:{port}"]),
        ("GET /who HTTP/1.1", ["{mine},{server}"]),
        ("GET /who HTTP/1.1", ["{mine}\t.evil.example"]),
        ("GET /who HTTP/1.1", ["user@{mine}"]),
        ("GET /who HTTP/1.1", ["[{name}]:{port}"]),
        ("GET /who HTTP/1.0", []),
        ("GET /who HTTP/1.1", []),
        ("OPTIONS * HTTP/1.1", ["{mine}"]),
        ("GET /who HTTP/1.1", ["8002-{task}.localhost:{port}"]),
        ("GET /who HTTP/1.1", ["08000-{task}.localhost:{port}"]),
        ("GET /who HTTP/1.1", ["65536-{task}.localhost:{port}"]),
    ],
)
def test_a_name_that_two_readers_could_take_differently_reaches_no_port(
    yard: Yard, line: str, hosts: list[str]
) -> None:
    at = urlsplit(yard.server.url)
    task = yard.task_id.removeprefix("run_")
    said = {"mine": yard.host, "name": yard.host.partition(":")[0], "server": at.netloc, "task": task, "port": at.port}
    head = [line, *(f"host: {host}" for host in hosts), f"authorization: Bearer {yard.server.token}"]
    with socket.create_connection(("127.0.0.1", at.port or 0), PATIENCE_S) as sock:
        sock.sendall(("\r\n".join([*head, "connection: close"]).format(**said) + "\r\n\r\n").encode())
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert answer.partition(b" ")[2][:3] in (b"400", b"404", b"421"), answer
