"""Ports of services on loopback: whose programs get in, which pages do not, and how long a port stays."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2
import pytest

from skillyard.faces.cli.loopback import MOST
from tests.crash.leftovers import until
from tests.crash.server import Server
from tests.faces.server.test_services import PATIENCE_S, Yard

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    place = tmp_path_factory.mktemp("loopback") / "data"
    more = {"memory_mb": 512}  # a thread and its stack for each of MOST connections
    with Server(place) as server, Yard(server, limits=more) as yard:
        yield yard


class Door:
    """``skillyard service open --loopback`` at work."""

    def __init__(self, yard: Yard, task_id: str, *options: str, port: int = 8000) -> None:
        argv = [sys.executable, "-m", "skillyard", "service", "open", task_id, str(port), "--loopback", *options]
        data = ["--data-dir", str(yard.server.data_dir)]
        self.process = subprocess.Popen([*argv, *data], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        if not said.startswith("127.0.0.1:"):
            self.process.kill()
            raise AssertionError(said + self.process.communicate()[1])
        self.port = int(said.strip().removeprefix("127.0.0.1:"))
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def door(yard: Yard) -> Iterator[Door]:
    with Door(yard, yard.task_id) as door:
        yield door


def test_a_port_on_loopback_is_the_services_port(door: Door) -> None:
    seen = httpx2.get(f"{door.url}/headers?a=1", timeout=PATIENCE_S).json()
    assert (seen["path"], seen["headers"]["host"]) == ("/headers?a=1", f"127.0.0.1:{door.port}")
    assert not seen["headers"].keys() & {"authorization", "x-forwarded-host", "x-forwarded-prefix"}
    data = bytes(range(256)) * 20_000
    for body in (data, iter([data[:100], data[100:]])):
        answer = httpx2.post(f"{door.url}/echo", content=body, timeout=PATIENCE_S)
        assert answer.text == hashlib.sha256(data).hexdigest()
    assert len(httpx2.get(f"{door.url}/large?200", timeout=PATIENCE_S).content) == 200 * 65536
    with socket.create_connection(("127.0.0.1", door.port), PATIENCE_S) as sock:  # not HTTP: passed on as it is
        sock.sendall(b"\x00hello\r\n\r\n")
        assert sock.recv(65536)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", door.port), PATIENCE_S)


def test_a_program_that_has_said_all_gets_the_rest(yard: Yard) -> None:
    with Door(yard, yard.task_id, port=8003) as last:
        with socket.create_connection(("127.0.0.1", last.port), PATIENCE_S) as sock:
            sock.sendall(b"\x00" * 300_000)
            sock.shutdown(socket.SHUT_WR)
            said = b"".join(iter(lambda: sock.recv(65536), b""))
        assert said == b"300000 bytes"


def test_a_request_whose_sender_has_said_all_gets_a_slow_answer(door: Door) -> None:
    """Longer than the time for which a program is waited for whose end cannot be passed on."""
    with ExitStack() as open_ones:
        asking = [
            open_ones.enter_context(_asked(door, "/slow?6.5", more)) for more in (b"", b"GET /again HTTP/1.1\r\n")
        ]
        for sock in asking:
            said = b"".join(iter(lambda sock=sock: sock.recv(65536), b""))  # type: ignore[misc]
            assert said.startswith(b"HTTP/1.1 200 "), said
            assert said.endswith(b"slow"), said


def test_programs_that_went_away_hold_no_connections(yard: Yard) -> None:
    with Door(yard, yard.task_id) as near:
        with ExitStack() as open_ones:

            def is_full() -> bool:
                if yard.get("/").status_code != 200:
                    return True
                open_ones.enter_context(_asked(near, "/slow?600"))  # in place of one that found no room yet
                return False

            for _ in range(MOST):
                open_ones.enter_context(_asked(near, "/slow?600"))
            until(is_full, 30, "the service has as many connections as it may have")
            assert not _answers(near)
        until(lambda: _answers(near), 30, "connections of programs that are gone are free")


def _asked(door: Door, path: str, more: bytes = b"") -> socket.socket:
    """Returns a connection on which a program has sent a request, and has said all."""
    sock = socket.create_connection(("127.0.0.1", door.port), PATIENCE_S)
    with suppress(OSError):  # one too many is ended at once
        sock.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{door.port}\r\n\r\n".encode() + more)
        sock.shutdown(socket.SHUT_WR)
    return sock


def _answers(door: Door) -> bool:
    with suppress(httpx2.TransportError):
        return bool(httpx2.get(f"{door.url}/", timeout=PATIENCE_S).status_code == 200)
    return False


@pytest.mark.skipif(not socket.has_ipv6, reason="this host has no IPv6")
def test_an_ipv6_socket_of_the_same_user_gets_in(door: Door) -> None:
    try:
        sock = socket.socket(socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"this host has no IPv6: {error}")
    with sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(("::ffff:127.0.0.1", door.port))
        sock.sendall(f"GET / HTTP/1.1\r\nhost: 127.0.0.1:{door.port}\r\n\r\n".encode())
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_pages_of_other_sites_do_not_get_through_loopback(door: Door) -> None:
    own = f"127.0.0.1:{door.port}"
    for sent in (
        {"host": "evil.example"},
        {"host": f"evil.example:{door.port}"},
        {"host": f"127.0.0.1:{door.port + 1}"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"https://{own}"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
    ):
        assert httpx2.get(f"{door.url}/", headers=sent, timeout=PATIENCE_S).status_code == 403, sent
    ours = {
        "host": f"localhost:{door.port}",
        "origin": f"http://localhost:{door.port}",
        "sec-fetch-site": "same-origin",
    }
    assert httpx2.get(f"{door.url}/", headers=ours, timeout=PATIENCE_S).status_code == 200
    with socket.create_connection(("127.0.0.1", door.port), PATIENCE_S) as sock:
        first = f"POST /echo HTTP/1.1\r\nhost: {own}\r\ncontent-length: 0\r\n\r\n"
        sock.sendall((first + "GET /headers HTTP/1.1\r\nhost: evil.example\r\n\r\n").encode())
        said = b"".join(iter(lambda: sock.recv(65536), b""))
    assert said.count(b"HTTP/1.1 200 ") == 1  # each request is judged: one a connection
    assert b"evil" not in said


@pytest.mark.parametrize("line", [f"{'M' * 33} /headers", f"GET /headers?{'a' * 70_000}"], ids=("method", "target"))
def test_no_request_is_too_long_to_be_judged(door: Door, line: str) -> None:
    """A page that made its own name one of this address names any method, and targets of megabytes."""
    with socket.create_connection(("127.0.0.1", door.port), PATIENCE_S) as sock:
        said = b""
        with suppress(ConnectionError):  # it may end before all was sent
            sock.sendall(f"{line} HTTP/1.1\r\nhost: evil.example:{door.port}\r\nconnection: close\r\n\r\n".encode())
            said = b"".join(iter(lambda: sock.recv(65536), b""))
    assert said == b"" or said.startswith(b"HTTP/1.1 403 "), said[:200]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_other_users_of_the_machine_are_refused(yard: Yard, door: Door) -> None:
    program = (
        "import os, socket; 'x'.encode('idna'); os.setuid(65533); s = socket.socket(); "
        f"s.connect(('127.0.0.1', {door.port})); "
        "s.sendall(b'GET / HTTP/1.0\\r\\nhost: 127.0.0.1:%d\\r\\n\\r\\n' % s.getpeername()[1]); print(s.recv(9))"
    )
    argv = [sys.executable, "-I", "-c", program]
    other = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert "HTTP" not in other.stdout, other.stdout
    assert httpx2.get(f"{door.url}/", timeout=PATIENCE_S).status_code == 200
    with Door(yard, yard.task_id, "--any-user") as open_door:
        argv[-1] = program.replace(str(door.port), str(open_door.port))
        other = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        assert "HTTP" in other.stdout, other.stderr


def test_a_port_on_loopback_outlives_its_server_and_ends_with_its_service(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as first:
        yard = Yard(first)
        door = Door(yard, yard.task_id)
        first.kill()
    with door, Server(tmp_path / "data") as second, second.client() as client:
        yard.server = second
        yard.until_it_answers()
        assert httpx2.get(f"{door.url}/", timeout=PATIENCE_S).status_code == 200
        client.task_cancel(yard.task_id)
        said, more = door.process.communicate(timeout=PATIENCE_S)
        assert (door.process.returncode, f"{yard.task_id} canceled" in more) == (0, True), said + more
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", door.port), PATIENCE_S)
        argv = [sys.executable, "-m", "skillyard", "service", "open", yard.task_id, "8000", "--loopback"]
        late = subprocess.run([*argv, "--data-dir", str(second.data_dir)], capture_output=True, text=True, timeout=60)
        assert (late.returncode, "has ended" in late.stderr) == (1, True), late.stderr
