"""``/blobs`` under abuse: ranges, conditions, kinds, bodies."""

from __future__ import annotations

import hashlib

import pytest

from tests.attacks.front_door.conftest import Door
from tests.attacks.front_door.wire import Response

DATA = bytes(range(256)) * 40
SIZE = len(DATA)
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(scope="module")
def blob(door: Door) -> str:
    return str(put(door, DATA).json["blob_id"])


def put(door: Door, data: bytes, *headers: str) -> Response:
    return door.ask(door.head("PUT /blobs", f"Content-Length: {len(data)}", *headers) + data)


WHOLE, PART, NOTHING = 200, 206, 416
RANGES: dict[str, tuple[int, bytes]] = {
    "bytes=0-0": (PART, DATA[:1]),
    "bytes=-1": (PART, DATA[-1:]),
    "bytes=10-": (PART, DATA[10:]),
    f"bytes=0-{10**18}": (PART, DATA),
    f"bytes=-{10**18}": (PART, DATA),
    "BYTES = 1 - 2": (PART, DATA[1:3]),
    f"bytes={SIZE}-": (NOTHING, b""),
    f"bytes={10**18}-": (NOTHING, b""),
    "bytes=-0": (NOTHING, b""),
    "bytes=5-2": (WHOLE, DATA),
    f"bytes=0-{10**30}": (WHOLE, DATA),
    "bytes=0-0,2-3": (WHOLE, DATA),
    "bytes=" + ",".join(["0-"] * 1000): (WHOLE, DATA),
    "bytes=0-0\t,": (WHOLE, DATA),
    "bytes=-": (WHOLE, DATA),
    "bytes=": (WHOLE, DATA),
    "bytes=--1": (WHOLE, DATA),
    "bytes=+1-2": (WHOLE, DATA),
    "bytes=0x0-0x1": (WHOLE, DATA),
    "bytes=\xb2-\xb3": (WHOLE, DATA),
    "bytes=1.0-2.0": (WHOLE, DATA),
    "lines=0-1": (WHOLE, DATA),
    "bytes 0-1": (WHOLE, DATA),
    "": (WHOLE, DATA),
}


@pytest.mark.parametrize("text", RANGES, ids=lambda text: text[:20].encode("ascii", "replace").decode())
def test_ranges(door: Door, blob: str, text: str) -> None:
    status, data = RANGES[text]
    response = door.ask(door.head(f"GET /blobs/{blob}", f"Range: {text}"))
    assert response.status == status
    if status == NOTHING:
        assert response.headers["content-range"] == f"bytes */{SIZE}"
        assert response.error["data"]["type"] == "RangeNotSatisfiable"
    else:
        assert response.body == data
        assert ("content-range" in response.headers) == (status == PART)


CONDITIONS = {
    (f'If-None-Match: "{SHA256}"',): 304,
    (f'If-None-Match: W/"{SHA256}"',): 304,
    (f'If-None-Match: "x", "{SHA256}"',): 304,
    ("If-None-Match: *",): 304,
    (f"If-None-Match: {SHA256}",): 200,
    ('If-None-Match: "' + "x" * 8000 + '"',): 200,
    ("If-None-Match: \xff",): 200,
    ("If-Range: x", "Range: bytes=0-0"): 200,
    (f'If-Range: W/"{SHA256}"', "Range: bytes=0-0"): 200,
    (f'If-Range: "{SHA256}"', "Range: bytes=0-0"): 206,
    ("If-Modified-Since: Sat, 29 Oct 2044 19:43:31 GMT",): 200,
}


@pytest.mark.parametrize("headers", CONDITIONS, ids=str)
def test_conditions(door: Door, blob: str, headers: tuple[str, ...]) -> None:
    assert door.ask(door.head(f"GET /blobs/{blob}", *headers)).status == CONDITIONS[headers]


def test_a_head_says_what_a_get_would(door: Door, blob: str) -> None:
    of_get, of_head = (door.ask(door.head(f"{method} /blobs/{blob}"), method) for method in ("GET", "HEAD"))
    assert of_head.body == b""
    differ = {name for name in of_get.headers if of_get.headers[name] != of_head.headers.get(name)}
    assert differ <= {"date"}


KINDS = (
    "text/html\r\nX-Evil: 1", "text/html\nX: 1", "text/\xe9", "text", "/", "text/", "text/plain; charset", "a/b\x00",
    "text/plain; x=\"\r\n\"", "x" * 300, "text/html, text/plain", "\u2028/x", "text/plain;x=" + "y" * 250,
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: ascii(kind)[:24])
def test_a_kind_that_is_none_is_stored_by_no_way(door: Door, kind: str) -> None:
    error = door.call("create_blob", {"content": "x", "kind": kind}).error
    assert (error["code"], error["data"]["field"]) == (-32602, "kind")
    if kind.isprintable() and "\u2028" not in kind:
        assert put(door, b"x", f"Content-Type: {kind}").status == 400


def test_a_page_is_never_shown_as_one_of_ours(door: Door) -> None:
    stored = put(door, b"<script>alert(1)</script>", "Content-Type: text/html; charset=utf-7").json
    shown = door.ask(door.head(f"GET /blobs/{stored['blob_id']}")).headers
    assert shown["content-disposition"] == "attachment"
    assert shown["x-content-type-options"] == "nosniff"
    assert "sandbox" in shown["content-security-policy"]


REFUSED: dict[tuple[str, ...], int] = {
    ("Content-Range: bytes 0-1/2",): 400,
    ("Content-Encoding: gzip",): 400,
    ("Content-Encoding: identity", "Content-Encoding: gzip"): 400,
    ("Content-Type: a/b", "Content-Type: a/b"): 400,
}


@pytest.mark.parametrize("headers", REFUSED, ids=str)
def test_what_a_store_does_not_do(door: Door, headers: tuple[str, ...]) -> None:
    assert put(door, b"xx", *headers).status == REFUSED[headers]


def test_query_parameters_are_refused(door: Door, blob: str) -> None:
    for line in (f"GET /blobs/{blob}?x=1", "PUT /blobs?kind=text/html"):
        assert door.ask(door.head(line, "Content-Length: 0")).status == 400


def test_a_body_that_breaks_off_leaves_nothing(door: Door) -> None:
    before = door.result("blobs.list", {})["blobs"]
    with door.wire() as wire:
        assert wire.send(door.head("PUT /blobs", "Content-Length: 100000") + b"x" * 50_000).end().closed()
    with door.wire() as wire:
        chunked = door.head("PUT /blobs", "Transfer-Encoding: chunked") + b"5\r\nabcde\r\nZZ\r\n"
        assert wire.send(chunked).response().status == 400
    assert door.result("blobs.list", {})["blobs"] == before


BASE64 = ("=", "a", "aGk", "aGk=\n", "aGk=aGk=", "aG k=", "____", "\u00e9", "a" * 100_001)


@pytest.mark.parametrize("content", BASE64, ids=lambda text: ascii(text)[:12])
def test_base64_that_is_none(door: Door, content: str) -> None:
    error = door.call("create_blob", {"content": content, "kind": "a/b", "encoding": "base64"}).error
    assert (error["code"], error["data"]["field"]) == (-32602, "content")
    assert len(error["message"]) < 100
