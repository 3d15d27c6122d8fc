"""Secrets at the gate: real clients and real HTTPS servers, with the gate's session between them."""

from __future__ import annotations

import base64
import gzip
import html
import http.client
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus

import pytest

from skillyard.gate.relay.guard import Ended
from tests.conformance.gate.intercepted import BOUND_S, LOOPBACK, TOKEN, Gate, Outside, all_of, server
from tests.conformance.gate.programs.web import Answer, Asked


@pytest.fixture
def gate(outside: Outside) -> Iterator[Gate]:
    outside.seen.clear()
    outside.routes.clear()
    with outside.gate() as gate:
        yield gate


def connection(gate: Gate, outside: Outside, name: str = "api.test") -> http.client.HTTPSConnection:
    connection = http.client.HTTPSConnection(LOOPBACK, gate.port, context=gate.trusting(), timeout=BOUND_S)
    connection.set_tunnel(name, outside.https.port)
    return connection


def ask(
    gate: Gate,
    outside: Outside,
    fields: Mapping[str, str] | None = None,
    *,
    method: str = "GET",
    path: str = "/echo",
    body: bytes | Iterable[bytes] | None = None,
) -> tuple[int, http.client.HTTPMessage, bytes]:
    asked = connection(gate, outside)
    try:
        asked.request(method, path, body, dict(fields or {}))
        answer = asked.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        asked.close()


@pytest.mark.parametrize(
    ("field", "written", "arrives"),
    [
        ("Authorization", "Bearer {}", "Bearer {}"),
        ("Authorization", "token {}", "token {}"),
        ("X-Api-Key", "{}", "{}"),
        ("Cookie", "a=1; session={}; b=2", "a=1; session={}; b=2"),
        ("X-Two", "{}:{}", "{}:{}"),
    ],
)
def test_the_value_arrives_and_the_placeholder_comes_back(
    gate: Gate, outside: Outside, field: str, written: str, arrives: str
) -> None:
    placeholder = gate.placeholder("KEY")
    status, _, body = ask(gate, outside, {field: written.format(placeholder, placeholder)})
    assert status == 200
    assert outside.seen[-1].headers[field.lower()] == arrives.format(TOKEN, TOKEN)
    assert json.loads(body)["headers"][field.lower()] == written.format(placeholder, placeholder)
    assert TOKEN.encode() not in body
    assert gate.log()[0].secrets == ("KEY",)


def test_basic_is_opened_and_closed_again(gate: Gate, outside: Outside) -> None:
    written = base64.b64encode(f"user:{gate.placeholder('KEY')}".encode()).decode()
    status, _, body = ask(gate, outside, {"Authorization": f"Basic {written}"})
    sent = outside.seen[-1].headers["authorization"]
    assert status == 200
    assert base64.b64decode(sent.removeprefix("Basic ")) == f"user:{TOKEN}".encode()
    assert sent.removeprefix("Basic ")[12:-6].encode() not in body


def test_two_secrets_of_one_host(outside: Outside) -> None:
    secrets = {"ONE": ("the first value", ["api.test:*"]), "TWO": ("the second value", ["*.other.test", "api.test:*"])}
    with outside.gate(secrets) as gate:
        fields = {"X-One": gate.placeholder("ONE"), "X-Two": gate.placeholder("TWO")}
        status, _, _ = ask(gate, outside, fields)
        assert status == 200
        assert outside.seen[-1].headers["x-one"] == "the first value"
        assert outside.seen[-1].headers["x-two"] == "the second value"
        assert gate.log()[0].secrets == ("ONE", "TWO")


def test_a_final_line_end_is_no_part_of_what_is_sent(outside: Outside) -> None:
    with outside.gate({"KEY": ("from-a-file-with-one-line\n", ["api.test:*"])}) as gate:
        status, _, body = ask(gate, outside, {"X-Api-Key": gate.placeholder("KEY")})
        assert status == 200
        assert outside.seen[-1].headers["x-api-key"] == "from-a-file-with-one-line"
        assert b"from-a-file" not in body


def test_what_no_header_can_carry_is_refused_without_a_word_of_it(outside: Outside) -> None:
    with outside.gate({"KEY": ("first line of it\nsecond line of it", ["api.test:*"])}) as gate:
        status, _, body = ask(gate, outside, {"X-Api-Key": gate.placeholder("KEY")})
        assert status == 403
        assert b"no header field can carry" in body
        assert b"line of it" not in body
        basic = base64.b64encode(f"u:{gate.placeholder('KEY')}".encode()).decode()
        assert ask(gate, outside, {"Authorization": f"Basic {basic}"})[0] == 200


@pytest.mark.parametrize("value", ["control\x01character", "\x1b[31mred-terminal", " begins-with-a-space"])
def test_what_headers_are_not_for_is_refused_whatever_parsers_take(outside: Outside, value: str) -> None:
    outside.seen.clear()
    with outside.gate({"KEY": (value, ["api.test:*"])}) as gate:
        status, _, body = ask(gate, outside, {"X-Api-Key": gate.placeholder("KEY")})
        assert (status, b"no header field can carry" in body) == (403, True)
    assert outside.seen == []


def test_at_a_port_that_is_not_bound_nobody_looks_inside(outside: Outside) -> None:
    host = f"api.test:{outside.https.port}"
    with outside.gate({"KEY": (TOKEN, ["api.test:1"])}) as gate:
        placeholder = gate.placeholder("KEY")
        head = f"GET /echo HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nX-Key: {placeholder}\r\n\r\n"
        with gate.tls("api.test", outside.https.port, outside.client_context()) as sock:
            sock.sendall(head.encode())
            assert b" 200 " in all_of(sock)
    assert outside.seen[-1].headers["x-key"] == placeholder


def test_a_session_that_ends_forgets_its_secrets(outside: Outside) -> None:
    with outside.gate() as gate:
        interception = gate.session.interception
        assert interception is not None
        assert interception.has("api.test", 443)
        gate._in_loop(gate.session.close)
        assert gate.session.interception is None
        assert not interception.has("api.test", 443)
        assert not interception.trust
        with pytest.raises(Ended):
            interception.guard("api.test", 443, lambda _: None)


URL = "is in the URL"
BODY = "is in the body"
UNBOUND = "a host that it is not bound to"


@pytest.mark.parametrize(
    ("path", "fields", "body", "reason"),
    [
        ("/echo?key={0}", {}, None, URL),
        ("/{0}/echo", {}, None, URL),
        ("/echo?key=%73{1}", {}, None, URL),
        ("/echo", {}, '{{"key": "{0}"}}', BODY),
        ("/echo", {"Authorization": "Bearer {0}"}, "key={0}", BODY),
        ("/echo", {"X-Other": "{2}"}, None, UNBOUND),
        ("/echo", {"X-Api-Key": "{3}"}, None, "encoding other than"),
        ("/echo", {"User-Agent": "agent/{0}"}, None, "User-Agent, which carries no credential"),
        ("/echo", {"Referer": "https://api.test/?{0}"}, None, "carries no credential"),
        ("/echo", {"X-Forwarded-For": "{0}"}, None, "carries no credential"),
        ("/echo", {"X-{0}": "1"}, None, "header field"),
    ],
)
def test_elsewhere_a_placeholder_is_refused(
    outside: Outside, path: str, fields: dict[str, str], body: str | None, reason: str
) -> None:
    outside.seen.clear()
    secrets = {"KEY": (TOKEN, ["api.test:*"]), "OTHER": ("another value", ["other.test:*"])}
    with outside.gate(secrets) as gate:
        key, other = gate.placeholder("KEY"), gate.placeholder("OTHER")
        encoded = base64.b64encode(b"u:" + key.encode()).decode()
        given = {name.format(key): value.format(key, key[1:], other, encoded) for name, value in fields.items()}
        sent = body.format(key).encode() if body is not None else None
        status, _, told = ask(gate, outside, given, method="POST", path=path.format(key, key[1:]), body=sent)
        assert status == 403
        assert reason in told.decode()
        # A head that came alone may have gone on before its body was seen.
        assert [asked for asked in outside.seen if sent is None or asked.body] == []
        (logged,) = gate.refusals()
        assert reason in logged
        assert key not in logged


@pytest.mark.parametrize("size", [1, 7, 4000])
def test_a_placeholder_in_pieces_of_a_body_is_refused(gate: Gate, outside: Outside, size: int) -> None:
    text = b"x" * 5000 + gate.placeholder("KEY").encode() + b"y" * 5000
    pieces = (text[at : at + size] for at in range(0, len(text), size))
    status, _, _ = ask(gate, outside, {"Content-Length": str(len(text))}, method="PUT", body=pieces)
    assert status == 403
    assert all(len(asked.body) < 5049 for asked in outside.seen)


def test_other_hosts_get_the_placeholder_and_no_more(gate: Gate, outside: Outside) -> None:
    context = outside.client_context()
    with gate.tls("other.test", outside.https.port, context) as sock:
        sock.sendall(request("other.test", outside.https.port, f"Authorization: Bearer {gate.placeholder('KEY')}"))
        assert gate.placeholder("KEY").encode() in all_of(sock)
    assert outside.seen[-1].headers["authorization"] == f"Bearer {gate.placeholder('KEY')}"
    assert gate.log()[0].secrets == ()


def request(name: str, port: int, *fields: str, target: str = "/echo", method: str = "GET") -> bytes:
    lines = (f"{method} {target} HTTP/1.1", f"Host: {name}:{port}", "Connection: close", *fields, "", "")
    return "\r\n".join(lines).encode()


@pytest.mark.parametrize("name", ["api.test", "plain.test"])
def test_in_plain_text_a_placeholder_is_refused(gate: Gate, outside: Outside, name: str) -> None:
    port, field = outside.http.port, f"Authorization: Bearer {gate.placeholder('KEY')}"
    with gate.tunnel(name, port) as sock:
        sock.sendall(request(name, port, field))
        assert b" 403 " in all_of(sock)
    with gate.connected() as sock:
        sock.sendall(request(name, port, field, target=f"http://{name}:{port}/echo"))
        assert b" 403 " in all_of(sock)
    body = f"key={gate.placeholder('KEY')}"
    with gate.tunnel(name, port) as sock:
        sock.sendall(request(name, port, f"Content-Length: {len(body)}", method="POST") + body.encode())
        assert b" 403 " in all_of(sock)
    with gate.tunnel(name, port) as sock:
        sock.sendall(request(name, port))
        assert b" 200 " in all_of(sock)
    assert len(outside.seen) == 1
    assert "plain text" in " ".join(gate.refusals())


def test_in_a_trailer_in_plain_text_too(gate: Gate, outside: Outside) -> None:
    host = f"plain.test:{outside.http.port}"
    head = f"POST http://{host}/echo HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n"
    with gate.connected() as sock:
        sock.sendall(f"{head}2\r\nok\r\n0\r\nX-Key: {gate.placeholder('KEY')}\r\n\r\n".encode())
        assert b" 403 " in all_of(sock)
    assert "is sent in plain text" in gate.refusals()[0]


@pytest.mark.parametrize("scheme", ["https", "http"])
def test_a_redirect_takes_nothing_elsewhere(gate: Gate, outside: Outside, scheme: str) -> None:
    """urllib repeats Authorization to wherever it is sent."""
    port = outside.https.port if scheme == "https" else outside.http.port
    trusted = outside.client_context(gate.trust)
    proxies = urllib.request.ProxyHandler({"http": gate.proxy, "https": gate.proxy})
    opener = urllib.request.build_opener(proxies, urllib.request.HTTPSHandler(context=trusted))
    asked = urllib.request.Request(
        outside.url("api.test", f"/to/302?{scheme}://other.test:{port}/echo"),
        headers={"Authorization": f"Bearer {gate.placeholder('KEY')}"},
    )
    try:
        answer = opener.open(asked, timeout=BOUND_S)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        told = answer.read()
    assert answer.status == (200 if scheme == "https" else 403)
    first, *others = outside.seen
    assert first.headers["authorization"] == f"Bearer {TOKEN}"
    assert len(others) == (1 if scheme == "https" else 0)
    assert all(TOKEN not in repr(dict(other.headers)) for other in others)
    assert TOKEN.encode() not in told


def test_a_route_of_the_bound_host_may_redirect_to_another_bound_one(outside: Outside) -> None:
    with outside.gate({"KEY": (TOKEN, ["api.test:*"]), "OTHER": ("another value", ["other.test:*"])}) as gate:
        with gate.tls("other.test", outside.https.port) as sock:
            sock.sendall(request("other.test", outside.https.port, f"Authorization: Bearer {gate.placeholder('KEY')}"))
            told = all_of(sock)
        assert b" 403 " in told
        assert UNBOUND.encode() in told


ECHOES: dict[str, Callable[[str], bytes]] = {
    "raw": lambda value: value.encode(),
    "basic": lambda value: base64.b64encode(f"user:{value}".encode()),
    "base64": lambda value: base64.b64encode(value.encode()),
    "urlsafe": lambda value: base64.urlsafe_b64encode(f"u:{value}:".encode()),
    "json": lambda value: json.dumps({"key": value}).encode(),
    "percent": lambda value: quote(value, safe="").encode(),
    "percent-small": lambda value: quote(value).lower().encode(),
    "form": lambda value: quote_plus(value).encode(),
    "json-slashes": lambda value: json.dumps({"key": value}).replace("/", "\\/").encode(),
    "html": lambda value: html.escape(value).encode(),
}


@pytest.mark.parametrize("filling", [0, 100_000])
@pytest.mark.parametrize("form", ECHOES)
def test_values_come_back_masked(gate: Gate, outside: Outside, form: str, filling: int) -> None:
    value = TOKEN.lower() if form == "percent-small" else TOKEN
    around = b"-" * filling

    def reflect(asked: Asked) -> Answer:
        told = ECHOES[form](asked.headers["authorization"].removeprefix("Bearer "))
        return 200, {"X-Said": told.decode()}, around + told + around

    outside.routes["/reflect"] = reflect
    secrets = {"KEY": (value, ["api.test:*"])}
    with outside.gate(secrets) as gate:
        fields = {"Authorization": f"Bearer {gate.placeholder('KEY')}"}
        status, given, body = ask(gate, outside, fields, path="/reflect")
    said = ECHOES[form](value)
    assert status == 200
    assert said not in body
    assert said.decode() not in given["X-Said"]
    assert longest_common(said, body) < 12
    if filling:
        assert int(given["Content-Length"]) == len(body) == len(said) + 2 * filling


def longest_common(said: bytes, body: bytes) -> int:
    """How much of ``said`` stands in ``body`` in one piece."""
    return max(
        (
            size
            for size in range(1, len(said) + 1)
            for at in range(len(said) - size + 1)
            if said[at : at + size] in body
        ),
        default=0,
    )


def test_trace_is_masked(gate: Gate, outside: Outside) -> None:
    def trace(sock: socket.socket) -> None:
        with outside.authority.context("api.test").wrap_socket(sock, server_side=True) as tls:
            head = tls.recv(1 << 16)
            key = head.partition(b"X-Api-Key: ")[2].partition(b"\r")[0]
            tls.sendall(b"HTTP/1.1 200 " + key + b"\r\nContent-Type: message/http\r\nConnection: close\r\n\r\n" + head)

    with server(trace) as port, gate.tls("api.test", port) as sock:
        sock.sendall(request("api.test", port, f"X-Api-Key: {gate.placeholder('KEY')}", method="TRACE"))
        told = all_of(sock)
    assert gate.placeholder("KEY").encode() in told
    assert TOKEN.encode() not in told


def test_compressed_answers_cannot_be_searched(gate: Gate, outside: Outside) -> None:
    def squeezed(asked: Asked) -> Answer:
        return 200, {"Content-Encoding": "gzip"}, gzip.compress(asked.headers.get("authorization", "-").encode())

    outside.routes["/squeezed"] = squeezed
    status, _, body = ask(gate, outside, {"Accept-Encoding": "gzip, br"}, path="/squeezed")
    assert outside.seen[-1].headers["accept-encoding"] == "identity"
    assert (status, gzip.decompress(body)) == (200, b"-")
    fields = {"Authorization": f"Bearer {gate.placeholder('KEY')}"}
    status, _, body = ask(gate, outside, fields, path="/squeezed")
    assert status == 502
    assert b"compressed" in body
    assert ask(gate, outside, path="/squeezed")[0] == 502  # what was sent once may come back on any connection


def test_nothing_of_a_malformed_answer_is_repeated(gate: Gate, outside: Outside) -> None:
    def broken(sock: socket.socket) -> None:
        with outside.authority.context("api.test").wrap_socket(sock, server_side=True) as tls:
            head = tls.recv(1 << 16)
            tls.sendall(b"HTTP/1.1 200 OK\r\n" + head.partition(b"X-Api-Key: ")[2])

    with server(broken) as port, gate.tls("api.test", port) as sock:
        sock.sendall(request("api.test", port, f"X-Api-Key: {gate.placeholder('KEY')}"))
        told = all_of(sock)
    assert b" 502 " in told
    assert TOKEN.encode() not in told
    assert all(TOKEN not in one.reason for one in gate.log())
