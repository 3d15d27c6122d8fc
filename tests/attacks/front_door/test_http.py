"""Raw HTTP that nobody should send. Each is refused as HTTP says, in the form of the protocol, or served as meant."""

from __future__ import annotations

import pytest

from tests.attacks.front_door.conftest import Door

BODY = b'{"jsonrpc":"2.0","id":1,"method":"list_skills","params":{}}'
JSON = "Content-Type: application/json"
CHUNKED = "Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)

RAW: dict[str, tuple[int, bytes]] = {
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
    "HTTP/0.9": (400, b"GET /healthz\r\n\r\n"),
    "HTTP/2": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/9.9": (505, b"GET /healthz HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n"),
    "SSH": (400, b"SSH-2.0-OpenSSH_9.9\r\n\r\n"),
    "no version": (400, b"GET /healthz HTTP\r\nHost: 127.0.0.1\r\n\r\n"),
    "a tab for a blank": (400, b"GET\t/healthz\tHTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
    "a blank in the target": (400, b"GET /heal thz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
    "eight bits in the target": (400, b"GET /\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
    "a NUL in the target": (400, b"GET /\x00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
    "a NUL in a header": (400, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\x00b\r\n\r\n"),
    "a return in a header": (400, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\rb\r\n\r\n"),
    "no host": (400, b"GET /healthz HTTP/1.1\r\n\r\n"),
    "two hosts": (400, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil\r\n\r\n"),
    "a blank before the colon": (400, b"GET /healthz HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n"),
    "no colon": (400, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX\r\n\r\n"),
    "no name": (400, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n: x\r\n\r\n"),
    "a fold before any header": (400, b"GET /healthz HTTP/1.1\r\n Host: 127.0.0.1\r\n\r\n"),
    "a head without an end": (431, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 300_000),
    "a line without an end": (431, b"GET /" + b"y" * 300_000),
    "a long header": (431, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 40_000 + b"\r\n\r\n"),
    "many headers": (431, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"a:b\r\n" * 2000 + b"\r\n"),
    "another coding": (501, b"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"),
    "two codings": (
        501,
        b"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    ),
    "a hidden coding": (400, b"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: \x0bchunked\r\n\r\n"),
    "a name without an address": (421, b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
    "an empty host": (421, b"GET /healthz HTTP/1.1\r\nHost:\r\n\r\n"),
    "a host with a user": (421, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1@evil\r\n\r\n"),
    "a user that looks like the host": (421, b"GET /healthz HTTP/1.1\r\nHost: evil@127.0.0.1\r\n\r\n"),
    "a list of hosts": (421, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1, evil\r\n\r\n"),
    "a host with a path": (421, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1/evil\r\n\r\n"),
    "a port that is none": (421, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:99999\r\n\r\n"),
    "an address as a number": (421, b"GET /healthz HTTP/1.1\r\nHost: 2130706433\r\n\r\n"),
    "a foreign origin": (403, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://evil\r\n\r\n"),
    "a null origin": (403, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: null\r\n\r\n"),
    "an origin of ours behind a foreign one": (
        403,
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://evil\r\nOrigin: http://127.0.0.1\r\n\r\n",
    ),
    "an origin in another scheme": (
        403,
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: https://127.0.0.1\r\n\r\n",
    ),
}


@pytest.mark.parametrize("name", RAW)
def test_no_http_that_is_taken(door: Door, name: str) -> None:
    status, data = RAW[name]
    response = door.ask(data)
    assert (response.status, response.error["code"]) == (status, -32003 if status == 403 else -32600)
    assert response.headers["x-content-type-options"] == "nosniff"


FRAMED: dict[str, tuple[int, tuple[str, ...], bytes]] = {
    "two lengths": (400, ("Content-Length: 5", f"Content-Length: {len(BODY)}"), BODY),
    "a list of lengths": (400, (f"Content-Length: {len(BODY)}, 5",), BODY),
    "a length with a sign": (400, (f"Content-Length: +{len(BODY)}",), BODY),
    "a negative length": (400, ("Content-Length: -1",), BODY),
    "a length in hexadecimal": (400, ("Content-Length: 0x3b",), BODY),
    "a length of other digits": (400, ("Content-Length: \xb2\xb3",), BODY),
    "a length without an end": (400, ("Content-Length: " + "9" * 5000,), BODY),
    "a length beyond all": (413, ("Content-Length: 99999999999999999999",), BODY),
    "length and chunks": (400, (f"Content-Length: {len(CHUNKS)}", CHUNKED), CHUNKS),
    "chunks and length": (400, (CHUNKED, "Content-Length: 0"), CHUNKS),
    "a chunk without a size": (400, (CHUNKED,), b"\r\n" + CHUNKS),
    "a negative chunk": (400, (CHUNKED,), b"-1\r\n" + CHUNKS),
    "a chunk in other digits": (400, (CHUNKED,), b"0x1\r\n{\r\n"),
    "a chunk that is longer than it says": (400, (CHUNKED,), b"2\r\n{{{{\r\n0\r\n\r\n"),
    "a chunk with a long extension": (431, (CHUNKED,), b"1;" + b"x" * 300_000),
    "trailers without an end": (431, (CHUNKED,), CHUNKS[:-2] + b"X: " + b"y" * 300_000),
    "a trailer that is none": (400, (CHUNKED,), CHUNKS[:-2] + b"no trailer\r\n\r\n"),
    "chunks that pass the limit": (413, (CHUNKED,), b"3000000\r\n" + b" " * 1024),
    "a compressed body": (415, ("Content-Encoding: gzip", f"Content-Length: {len(BODY)}"), BODY),
    "an encoding behind another": (
        415,
        ("Content-Encoding: identity", "Content-Encoding: br", f"Content-Length: {len(BODY)}"),
        BODY,
    ),
    "no type": (415, (f"Content-Length: {len(BODY)}",), BODY),
}


@pytest.mark.parametrize("name", FRAMED)
def test_a_body_in_a_frame_that_does_not_hold(door: Door, name: str) -> None:
    """And what comes behind it is never read as a request."""
    status, headers, body = FRAMED[name]
    typed = headers if name == "no type" else (JSON, *headers)
    with door.wire() as wire:
        wire.send(door.head("POST /rpc", *typed) + body)
        if name != "chunks that pass the limit":
            wire.send(door.head("GET /readyz"))
        else:
            wire.send(b" " * 0x3000000)
        response = door.checked(wire.response())
        assert (response.status, response.error["code"]) == (status, -32600)
        assert response.headers["connection"] == "close"
        assert wire.closed()


def test_chunks_in_http_1_0_are_refused(door: Door) -> None:
    request = door.head("POST /rpc", JSON, CHUNKED).replace(b"HTTP/1.1", b"HTTP/1.0") + CHUNKS
    assert door.ask(request).status == 400


TYPES = {
    "application/json": 200,
    "Application/JSON ; charset=UTF-8": 200,
    'application/json;charset="utf-8"': 200,
    "application/json; charset=utf-16": 415,
    "application/json; charset=latin-1": 415,
    "application/json; boundary=x": 415,
    "application/json, text/plain": 415,
    "application/jsonp": 415,
    "text/json": 415,
    "text/plain": 415,
    "application/x-www-form-urlencoded": 415,
    "multipart/form-data; boundary=x": 415,
    "": 415,
    "\xff": 415,
}


@pytest.mark.parametrize("kind", TYPES)
def test_types(door: Door, kind: str) -> None:
    request = door.head("POST /rpc", f"Content-Type: {kind}", f"Content-Length: {len(BODY)}") + BODY
    assert door.ask(request).status == TYPES[kind]


METHODS = (
    "GET",
    "HEAD",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "PUT",
    "DELETE",
    "PATCH",
    "PROPFIND",
    "post",
    "!#$%",
    "X" * 900,
)
PATHS = ("/rpc", "/blobs", "/blobs/blob:0", "/healthz", "/readyz", "/metrics", "/")
TAKEN = {
    ("GET", "/healthz"): 200, ("HEAD", "/healthz"): 200, ("GET", "/readyz"): 200, ("HEAD", "/readyz"): 200,
    ("GET", "/metrics"): 403, ("HEAD", "/metrics"): 403, ("GET", "/blobs/blob:0"): 404, ("HEAD", "/blobs/blob:0"): 404,
    ("PUT", "/blobs"): 201,
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_methods_of_http(door: Door, path: str) -> None:
    for method in METHODS:
        response = door.ask(door.head(f"{method} {path}", "Content-Length: 0"), method)
        expected = TAKEN.get((method, path), 404 if path == "/" else 405)
        assert response.status == expected, method
        if expected == 405:
            assert response.headers["allow"]
            assert method == "HEAD" or response.error["data"]["type"] == "MethodNotAllowed"


TARGETS = (
    "*", "http://127.0.0.1/rpc", "http://evil/rpc", "127.0.0.1:22", "rpc", "//rpc", "/rpc/", "/RPC", "/rpc%00",
    "/rpc%2f", "/./rpc", "/x/../rpc", "/rpc/..;/metrics", "/%2e%2e/rpc", "/rpc;x=y", "/rpc#x", "/%72%70%63%ff",
    "/blobs/", "/blobs/..", "/blobs/%2e%2e", "/blobs/..%2f..%2fetc%2fpasswd", "/blobs/%2fetc%2fpasswd",
    "/blobs/..%5c..%5cx", "/blobs/blob:x%00", "/blobs/blob:%2e%2e", "/blobs/blob:..", "/blobs/blob:.",
    "/blobs/blob:x%0d%0aX:%20y",
    "/blobs/%c0%ae%c0%ae", "/blobs/%ef%bc%8e%ef%bc%8e", "/blobs/blob:%c3%a9", "/blobs/blob%3ax", "/blobs/%62lob:x",
    "/blobs/blob:x/../../rpc", "/blobs/blob:" + "a" * 129, "/blobs/" + "a" * 20_000, "/blobs/file:///etc/passwd",
    "/%", "/%zz", "/%%32%65", "/\\..\\x", "/~root/", "/.git/config", "/.env", "/skillyard.db", "/token",
)  # fmt: skip


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target[:40])
def test_targets_that_are_not_there(door: Door, target: str) -> None:
    response = door.ask(door.head(f"GET {target}"))
    assert response.status == 404
    assert response.error["data"]["type"] in ("NotFound", "BlobNotFound")
    assert len(response.body) < 300


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target[:40])
def test_without_a_token_all_targets_look_alike(door: Door, target: str) -> None:
    with door.wire() as wire:
        told = wire.send(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()).response()
        known = wire.send(b"GET /rpc HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").response()
    assert (told.status, told.body) == (known.status, known.body) == (401, known.body)


AUTHORIZATIONS = (
    "", "Bearer", "Bearer ", "Basic YTpi", "Bearer\t{token}", "Token {token}", "Bearer {token}x", "Bearer {short}",
    "Bearer {upper}", "Bearer {token} {token}", "Bearer {token},{token}", "bearer: {token}", "Bearer \xe9",
    "Bearer \xff\xfe", "Bearer " + "a" * 20_000, "Digest username={token}", '"Bearer {token}"',
)  # fmt: skip


@pytest.mark.parametrize("text", AUTHORIZATIONS, ids=lambda text: text[:24].encode("ascii", "replace").decode())
def test_what_is_no_token(door: Door, text: str) -> None:
    token = door.tokens["alice"]
    shown = text.format(token=token, short=token[:-1], upper=token.upper()) if "{" in text else text
    head = f"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {shown}\r\n\r\n"
    response = door.ask(head.encode("latin-1"))
    assert (response.status, response.error["code"]) == (401, -32001)
    assert response.headers["www-authenticate"].startswith("Bearer ")
    assert token.encode() not in response.body


def test_two_tokens_are_none(door: Door) -> None:
    other = f"Authorization: Bearer {door.tokens['owner']}"
    assert door.ask(door.head("GET /metrics", other)).status == 401


def test_headers_that_proxies_set_change_nothing(door: Door) -> None:
    told = (
        "X-Forwarded-For: 127.0.0.1",
        "X-Forwarded-Host: evil",
        "X-Forwarded-Proto: https",
        "Forwarded: for=1;host=evil",
        "X-Original-URL: /metrics",
        "X-Rewrite-Url: /metrics",
        "X-HTTP-Method-Override: DELETE",
    )
    assert door.ask(door.post(BODY, *told)).json["result"]
    as_owner = door.ask(door.head("GET /metrics", "X-Forwarded-User: owner", "Remote-User: owner"))
    assert as_owner.status == 403


def test_an_upgrade_is_not_made(door: Door) -> None:
    for to in ("websocket", "h2c", "TLS/1.2"):
        asked = ("Connection: Upgrade", f"Upgrade: {to}", "Sec-WebSocket-Key: eA==", "Sec-WebSocket-Version: 13")
        assert door.ask(door.head("GET /healthz", *asked)).status == 200


def test_a_folded_header_is_one_header(door: Door) -> None:
    folded = door.head("GET /metrics").replace(b"Bearer ", b"Bearer\r\n  ")
    assert door.ask(folded).status == 403


def test_pipelined_requests_are_answered_in_order_each_for_its_own_principal(door: Door) -> None:
    mine = [door.post(BODY.replace(b'"id":1', b'"id":%d' % n), who=("alice", "mallory")[n % 2]) for n in range(20)]
    strange = door.head("GET /metrics", who="owner")
    with door.wire() as wire:
        wire.send(b"".join(mine) + strange + door.head("GET /metrics") + b"GARBAGE\r\n\r\n")
        assert [wire.response().json["id"] for _ in range(20)] == list(range(20))
        assert [wire.response().status for _ in range(3)] == [200, 403, 400]
        assert wire.closed()


def test_what_follows_a_refused_body_is_no_request(door: Door) -> None:
    hidden = door.head("GET /healthz")
    with door.wire() as wire:
        wire.send(door.head("POST /rpc", "Content-Type: text/plain", f"Content-Length: {len(hidden)}") + hidden)
        assert wire.response().status == 415
        assert wire.closed()


def test_a_body_that_nobody_reads_is_no_request(door: Door) -> None:
    hidden = door.head("GET /metrics", who="owner")
    with door.wire() as wire:
        wire.send(door.head("GET /healthz", f"Content-Length: {len(hidden)}") + hidden + door.head("GET /readyz"))
        assert wire.response().json == {"status": "ok"}
        assert wire.response().json["status"] == "ready"


def test_a_client_is_invited_to_send_only_what_is_wanted(door: Door) -> None:
    expecting = ("Expect: 100-continue", f"Content-Length: {len(BODY)}")
    with door.wire() as wire:
        assert wire.send(door.head("POST /rpc", JSON, *expecting)).response(interim=True).status == 100
        assert wire.send(BODY).response().status == 200
    with door.wire() as wire:
        assert (
            wire.send(door.head("POST /rpc", "Content-Type: text/plain", *expecting)).response(interim=True).status
            == 415
        )


def test_extensions_and_trailers_of_chunks_are_passed_over(door: Door) -> None:
    chunks = b'%x;a=b;c="d"\r\n%s\r\n0;x\r\nContent-Length: 3\r\nAuthorization: Bearer x\r\n\r\n' % (len(BODY), BODY)
    with door.wire() as wire:
        wire.send(door.head("POST /rpc", JSON, CHUNKED) + chunks + door.head("GET /healthz"))
        assert (wire.response().status, wire.response().status) == (200, 200)


def test_a_client_that_says_no_more_is_gone(door: Door) -> None:
    with door.wire() as wire:
        assert wire.send(door.head("POST /rpc", JSON, "Content-Length: 500") + BODY).end().closed()


def test_a_bad_chunk_behind_an_answer_closes(door: Door) -> None:
    with door.wire() as wire:
        wire.send(door.head("POST /nothing", JSON, CHUNKED) + b"5\r\nabcde\r\nZZ\r\n")
        assert wire.response().status in (400, 404)
        assert wire.closed()
