"""HTTP/1.1 through a gate that ends TLS: what servers and clients may do beyond a request and its answer."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.gate.intercepted import TOKEN, Gate, Outside, all_of, server

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Serve = Callable[[ssl.SSLSocket], None]


@pytest.fixture
def gate(outside: Outside) -> Iterator[Gate]:
    with outside.gate() as gate:
        yield gate


class Talk:
    """A program's side of a connection to api.test."""

    def __init__(self, gate: Gate, port: int, sock: ssl.SSLSocket) -> None:
        self.placeholder = gate.placeholder("KEY")
        self.sock = sock
        self._host = f"api.test:{port}"

    def head(self, *fields: str, method: str = "GET", version: str = "1.1") -> bytes:
        return "\r\n".join((f"{method} / HTTP/{version}", f"Host: {self._host}", *fields, "", "")).encode()

    def ask(self, *fields: str, method: str = "GET", version: str = "1.1", body: bytes = b"") -> None:
        self.sock.sendall(self.head(*fields, method=method, version=version) + body)


@contextlib.contextmanager
def talk(gate: Gate, outside: Outside, serve: Serve) -> Iterator[Talk]:
    """``serve`` is the real server, in a thread of its own."""
    context = outside.authority.context("api.test")

    def served(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_side=True) as tls:
            serve(tls)

    with server(served) as port, gate.tls("api.test", port) as sock:
        yield Talk(gate, port, sock)


def head_of(sock: socket.socket) -> bytes:
    """Up to the empty line; nothing beyond it is read."""
    head = b""
    while not head.endswith(b"\r\n\r\n") and (piece := sock.recv(1)):
        head += piece
    return head


def exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        assert piece, data
        data += piece
    return data


def unchunked(body: bytes) -> bytes:
    whole = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        whole, body = whole + rest[:length], rest[length + 2 :] if length else b""
    return whole


def test_continue_is_asked_for_and_given(gate: Gate, outside: Outside) -> None:
    def serve(sock: ssl.SSLSocket) -> None:
        assert b"Expect: 100-continue" in head_of(sock)
        sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + exactly(sock, 5))

    with talk(gate, outside, serve) as program:
        program.ask("Expect: 100-continue", "Content-Length: 5", method="POST")
        assert head_of(program.sock).startswith(b"HTTP/1.1 100 ")
        program.sock.sendall(b"hello")
        assert head_of(program.sock).startswith(b"HTTP/1.1 200 ")
        assert exactly(program.sock, 5) == b"hello"


def test_continue_may_be_denied(gate: Gate, outside: Outside) -> None:
    def serve(sock: ssl.SSLSocket) -> None:
        head_of(sock)
        sock.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with talk(gate, outside, serve) as program:
        program.ask("Expect: 100-continue", "Content-Length: 5", method="POST")
        assert head_of(program.sock).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\nETag: x\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 70\r\nETag: x\r\n\r\n"),
    ],
)
def test_answers_without_a_body(gate: Gate, outside: Outside, method: str, answer: bytes) -> None:
    def serve(sock: ssl.SSLSocket) -> None:
        for _ in range(2):
            head_of(sock)
            sock.sendall(answer)

    with talk(gate, outside, serve) as program:
        for _ in range(2):  # the second shows that nothing of the first was left
            program.ask(method=method)
            assert head_of(program.sock) == answer


def test_chunks_and_trailers_both_ways(gate: Gate, outside: Outside) -> None:
    def serve(sock: ssl.SSLSocket) -> None:
        assert b"chunked" in head_of(sock).lower()
        body = b""
        while not body.endswith(b"\r\n\r\n"):
            body += sock.recv(4096)
        sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n" + body)

    body = b"5\r\nhello\r\n6\r\n world\r\n0\r\nX-Sum: 7\r\n\r\n"
    with talk(gate, outside, serve) as program:
        program.ask("Transfer-Encoding: chunked", method="POST", body=body)
        assert b"chunked" in head_of(program.sock).lower()
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += exactly(program.sock, 1)
        assert unchunked(answer) == b"hello world"
        assert answer.endswith(b"X-Sum: 7\r\n\r\n")


def test_a_placeholder_in_a_trailer_is_refused(gate: Gate, outside: Outside) -> None:
    with talk(gate, outside, read_all) as program:
        body = f"2\r\nok\r\n0\r\nX-Key: {program.placeholder}\r\n\r\n".encode()
        program.ask("Transfer-Encoding: chunked", method="POST", body=body)
        assert b" 403 " in all_of(program.sock)


@pytest.mark.parametrize("piece", [1, 5, 16, 1000])
def test_a_value_in_pieces_of_an_answer_is_masked(gate: Gate, outside: Outside, piece: int) -> None:
    text = b"<" + TOKEN.encode() + b">" + base64.b64encode(b"u:" + TOKEN.encode()) + b"." * 20

    def serve(sock: ssl.SSLSocket) -> None:
        head_of(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(0, len(text), piece):
            part = text[at : at + piece]
            sock.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        sock.sendall(b"0\r\n\r\n")

    with talk(gate, outside, serve) as program:
        program.ask("Connection: close")
        body = unchunked(all_of(program.sock).partition(b"\r\n\r\n")[2])
        assert body.count(program.placeholder.encode()) == 2
        assert body.endswith(b"." * 20)
        for form in (TOKEN.encode(), base64.b64encode(b"u:" + TOKEN.encode())[3:-3]):
            most = len(form) // 2 + 1  # half may show when this machine pauses between two pieces
            assert not any(form[at : at + most] in body for at in range(len(form) - most + 1))


def test_what_a_server_says_is_passed_on_at_once(gate: Gate, outside: Outside) -> None:
    """Events arrive as they are sent, also when one ends as a value begins."""

    def serve(sock: ssl.SSLSocket) -> None:
        head_of(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(3):
            event = b"data: %d %s" % (at, TOKEN[:3].encode())
            sock.sendall(b"%x\r\n%s\r\n" % (len(event), event))
            sock.recv(1)  # which comes once the program has read it

    with talk(gate, outside, serve) as program:
        program.ask("Content-Length: 3", method="POST")
        head_of(program.sock)
        for at in range(3):
            event = b""
            while TOKEN[:3].encode() not in event:
                event += program.sock.recv(64)
            assert b"data: %d" % at in event
            program.sock.sendall(b"x")


def test_requests_sent_ahead_are_answered_in_turn(gate: Gate, outside: Outside) -> None:
    def serve(sock: ssl.SSLSocket) -> None:
        for _ in range(3):
            head = head_of(sock)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" + head.partition(b"X-N: ")[2][:1])

    with talk(gate, outside, serve) as program:
        program.sock.sendall(b"".join(program.head(f"X-N: {n}") for n in range(3)))
        for n in range(3):
            head_of(program.sock)
            assert exactly(program.sock, 1) == b"%d" % n


def test_each_request_on_a_connection_is_judged(gate: Gate, outside: Outside) -> None:
    heads: list[bytes] = []

    def serve(sock: ssl.SSLSocket) -> None:
        while head := head_of(sock):
            heads.append(head)
            sock.sendall(OK)

    with talk(gate, outside, serve) as program:
        program.ask(f"X-Api-Key: {program.placeholder}")
        head_of(program.sock)
        assert exactly(program.sock, 2) == b"ok"
        other = program.head(f"X-Api-Key: {program.placeholder}").replace(b"Host: api.test", b"Host: other.test")
        program.sock.sendall(other)
        assert b" 403 " in all_of(program.sock)
    assert len(heads) == 1


@pytest.mark.parametrize("host", ["other.test", "api.test.", "API.TEST@other.test", "api.test:1", ""])
def test_host_must_be_the_name(gate: Gate, outside: Outside, host: str) -> None:
    heads: list[bytes] = []
    with talk(gate, outside, lambda sock: heads.append(head_of(sock))) as program:
        program.sock.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nX-Api-Key: {program.placeholder}\r\n\r\n".encode())
        assert b" 403 " in all_of(program.sock)
    assert heads in ([], [b""])


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1\r\nHost: {host}\r\nHost: other.test\r\nX-Api-Key: {key}\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\nX-Key: {key}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: {host}\r\nX-A: 1\r\n X-Api-Key: {key}\r\n\r\n",
        "GET / HTTP/1.1\nHost: {host}\nX-Api-Key: {key}\n\n",
        "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nX-Api-Key: {key}\r\n\r\n",
        "CONNECT other.test:443 HTTP/1.1\r\nHost: {host}\r\nX-Api-Key: {key}\r\n\r\n",
        "GET https://other.test/ HTTP/1.1\r\nHost: {host}\r\nX-Api-Key: {key}\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_two_servers_could_read_differently_is_refused(gate: Gate, outside: Outside, head: str) -> None:
    heads: list[bytes] = []
    with talk(gate, outside, lambda sock: heads.append(head_of(sock))) as program:
        host = program.head().split(b"Host: ")[1].split()[0].decode()
        program.sock.sendall(head.format(host=host, key=program.placeholder).encode())
        assert b" 403 " in all_of(program.sock)
    assert heads in ([], [b""])


def test_an_old_client_gets_what_it_understands(gate: Gate, outside: Outside) -> None:
    def serve(sock: ssl.SSLSocket) -> None:
        head_of(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")

    with talk(gate, outside, serve) as program:
        program.ask(f"X-Api-Key: {program.placeholder}", version="1.0")
        head, _, body = all_of(program.sock).partition(b"\r\n\r\n")
        assert b"chunked" not in head.lower()
        assert body == b"abc"


def test_an_old_server_ends_its_answer_by_ending(gate: Gate, outside: Outside) -> None:
    def serve(sock: ssl.SSLSocket) -> None:
        sock.sendall(b"HTTP/1.0 200 OK\r\n\r\nkey " + head_of(sock).partition(b"X-Api-Key: ")[2].split(b"\r")[0])

    with talk(gate, outside, serve) as program:
        program.ask(f"X-Api-Key: {program.placeholder}")
        head, _, body = all_of(program.sock).partition(b"\r\n\r\n")
        assert unchunked(body) == f"key {program.placeholder}".encode()
        assert b"close" in head.lower()


def test_an_answer_that_is_cut_off_does_not_look_whole(gate: Gate, outside: Outside) -> None:
    def serve(sock: ssl.SSLSocket) -> None:
        head_of(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 70000)

    with talk(gate, outside, serve) as program:
        program.ask()
        head, _, body = all_of(program.sock).partition(b"\r\n\r\n")
        assert b"Content-Length: 100000" in head
        assert len(body) == 70000


def test_an_early_answer_arrives_though_the_body_is_not_wanted(gate: Gate, outside: Outside) -> None:
    def serve(sock: ssl.SSLSocket) -> None:
        head_of(sock)
        sock.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")

    with talk(gate, outside, serve) as program:
        program.ask("Content-Length: 800000", method="PUT")
        with contextlib.suppress(OSError):
            for _ in range(80):
                program.sock.sendall(bytes(10000))
        assert b" 401 " in all_of(program.sock)


def test_a_websocket_is_raw_and_masked(gate: Gate, outside: Outside) -> None:
    seen: list[bytes] = []
    frame = b"\x81" + bytes([len(TOKEN)]) + TOKEN.encode()

    def serve(sock: ssl.SSLSocket) -> None:
        seen.append(head_of(sock))
        sock.sendall(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + frame[:5])
        sock.sendall(frame[5:])
        while data := sock.recv(4096):
            sock.sendall(data)

    with talk(gate, outside, serve) as program:
        program.ask(
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
            "Sec-WebSocket-Extensions: permessage-deflate",
            f"Authorization: Bearer {program.placeholder}",
        )
        assert b" 101 " in head_of(program.sock)
        masked = exactly(program.sock, len(frame))
        assert masked[:2] == frame[:2]
        assert program.placeholder[:20].encode() in masked
        assert TOKEN[3:7].encode() not in masked
        ping = b"\x89\x85\1\2\3\4hello"
        program.sock.sendall(ping)
        assert exactly(program.sock, len(ping)) == ping
    assert b"Sec-WebSocket-Extensions" not in seen[0]
    assert f"Bearer {TOKEN}".encode() in seen[0]


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def forget_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


@pytest.mark.parametrize("size", [32 << 20, pytest.param(1 << 30, marks=pytest.mark.long)])
def test_large_bodies_take_no_memory(gate: Gate, outside: Outside, size: int) -> None:
    """Up and down, each as one message; both ends are in this process too."""
    if not forget_peak():
        pytest.skip("the kernel does not let this process forget its peak of memory (proc(5), clear_refs)")
    piece = os.urandom(1 << 16)

    def serve(sock: ssl.SSLSocket) -> None:
        head_of(sock)
        read(sock, size)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(0, size, len(piece)):
            sock.sendall(piece)

    before = peak_bytes()
    with talk(gate, outside, serve) as program:
        program.ask(f"Content-Length: {size}", f"X-Api-Key: {program.placeholder}", method="PUT")
        for _ in range(0, size, len(piece)):
            program.sock.sendall(piece)
        head_of(program.sock)
        read(program.sock, size)
    assert peak_bytes() - before < 16 << 20


def read_all(sock: socket.socket) -> None:
    all_of(sock)


def read(sock: socket.socket, size: int) -> None:
    buffer = bytearray(1 << 16)
    while size:
        count = sock.recv_into(buffer, min(size, len(buffer)))
        assert count
        size -= count


@pytest.mark.parametrize(
    ("method", "fields", "body", "sent"),
    [
        ("GET", (), b"", True),
        ("HEAD", ("Content-Length: 0",), b"", True),
        ("POST", ("Content-Length: 1",), b"x", False),
        ("PUT", ("Content-Length: 0",), b"", False),
        ("DELETE", (), b"", False),
        ("OPTIONS", (), b"", False),
        ("GET", ("Content-Length: 1",), b"x", False),
        ("GET", ("Transfer-Encoding: chunked",), b"0\r\n\r\n", False),
        ("GET", ("X-HTTP-Method-Override: DELETE",), b"", False),
    ],
)
def test_a_secret_for_reading_is_put_into_requests_that_read(
    outside: Outside, method: str, fields: tuple[str, ...], body: bytes, sent: bool
) -> None:
    heard: list[bytes] = []

    def serve(tls: ssl.SSLSocket) -> None:
        with contextlib.suppress(OSError):
            heard.append(head_of(tls))
            tls.sendall(OK)

    with outside.gate(reading=True) as gate, talk(gate, outside, serve) as program:
        program.ask(f"Authorization: Bearer {program.placeholder}", *fields, method=method, body=body)
        status = head_of(program.sock).split()[1]
    assert status == (b"200" if sent else b"403")
    assert (TOKEN.encode() in b"".join(heard)) is sent
