"""``PUT`` and ``GET /blobs`` (skills-protocol §11)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.errors import QuotaExceeded
from skillyard.domain.principal import Principal
from skillyard.faces.http import blobs
from skillyard.faces.http.app import HttpLimits
from skillyard.faces.http.errors import RangeNotSatisfiable
from skillyard.ports.blobs import BlobInfo
from tests.faces.support import AUTH, Serving, head, serving, until, within

pytestmark = pytest.mark.anyio

DATA = bytes(range(256)) * 1000


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving(HttpLimits(blob=300_000)) as it:
        yield it


@pytest.fixture
async def http(server: Serving) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url, headers=AUTH, trust_env=False) as client:
        yield client


async def put(http: httpx2.AsyncClient, data: bytes = DATA, kind: str = "text/csv") -> str:
    response = await http.put("/blobs", content=data, headers={"content-type": kind})
    assert response.status_code == 201
    return str(response.json()["blob_id"])


async def test_what_was_put_is_got(http: httpx2.AsyncClient) -> None:
    response = await http.put("/blobs", content=DATA, headers={"content-type": "text/csv"})
    digest = hashlib.sha256(DATA).hexdigest()
    blob_id = response.json()["blob_id"]
    assert response.status_code == 201
    assert response.json() == {"blob_id": blob_id, "size_bytes": len(DATA), "sha256": digest}
    assert response.headers["location"] == f"/blobs/{blob_id}"
    got = await http.get(f"/blobs/{blob_id}")
    assert (got.status_code, got.content) == (200, DATA)
    assert got.headers["content-type"] == "text/csv"
    assert got.headers["etag"] == f'"{digest}"'
    assert got.headers["accept-ranges"] == "bytes"
    assert got.headers["content-disposition"] == "attachment"


async def test_head_describes_and_sends_nothing(http: httpx2.AsyncClient, server: Serving) -> None:
    blob_id = await put(http)
    for headers in ({}, {"range": "bytes=0-9"}):
        response = await http.head(f"/blobs/{blob_id}", headers=headers)
        assert (response.status_code, response.content) == (200, b"")
        assert response.headers["content-length"] == str(len(DATA))
    assert server.metrics.render().count(b'direction="out"') == 0


async def test_an_empty_blob(http: httpx2.AsyncClient) -> None:
    blob_id = await put(http, b"")
    assert (await http.get(f"/blobs/{blob_id}")).content == b""
    assert (await http.get(f"/blobs/{blob_id}", headers={"range": "bytes=0-"})).status_code == 416


@pytest.mark.parametrize(
    ("header", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        ("bytes=255990-", 255_990, 256_000),
        ("bytes=-5", 255_995, 256_000),
        ("bytes=-999999", 0, 256_000),
        ("bytes=100000-999999", 100_000, 256_000),
        ("Bytes = 1 - 2", 1, 3),
    ],
)
async def test_one_range_is_206(http: httpx2.AsyncClient, header: str, start: int, end: int) -> None:
    response = await http.get(f"/blobs/{await put(http)}", headers={"range": header})
    assert (response.status_code, response.content) == (206, DATA[start:end])
    assert response.headers["content-range"] == f"bytes {start}-{end - 1}/{len(DATA)}"
    assert response.headers["content-length"] == str(end - start)


@pytest.mark.parametrize("header", ["bytes=256000-", "bytes=999999-1000000", "bytes=-0"])
async def test_a_range_outside_is_416(http: httpx2.AsyncClient, header: str) -> None:
    response = await http.get(f"/blobs/{await put(http)}", headers={"range": header})
    assert response.status_code == 416
    assert response.headers["content-range"] == f"bytes */{len(DATA)}"


@pytest.mark.parametrize("header", ["bytes=0-1,5-6", "bytes=5-1", "bytes=-", "lines=0-1", "bytes=a-b", "bytes=²-"])
async def test_what_is_no_single_range_gives_the_whole(http: httpx2.AsyncClient, header: str) -> None:
    response = await http.get(f"/blobs/{await put(http)}", headers={b"range": header.encode("utf-8")})
    assert (response.status_code, response.content) == (200, DATA)


async def test_if_none_match_is_304(http: httpx2.AsyncClient) -> None:
    path = f"/blobs/{await put(http)}"
    tag = (await http.head(path)).headers["etag"]
    for value in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        response = await http.get(path, headers={"if-none-match": value})
        assert (response.status_code, response.content, response.headers["etag"]) == (304, b"", tag)
    assert (await http.get(path, headers={"if-none-match": '"x"'})).status_code == 200


async def test_if_range_wants_the_same_digest(http: httpx2.AsyncClient) -> None:
    path = f"/blobs/{await put(http)}"
    tag = (await http.head(path)).headers["etag"]
    part = {"range": "bytes=0-1"}
    assert (await http.get(path, headers=part | {"if-range": tag})).status_code == 206
    assert (await http.get(path, headers=part | {"if-range": '"x"'})).status_code == 200


@pytest.mark.parametrize("blob_id", ["blob:nope", "nope", "blob:", "blob:..", "blob:a%2Fb", "%00"])
async def test_an_unknown_blob_is_404(http: httpx2.AsyncClient, blob_id: str) -> None:
    response = await http.get(f"/blobs/{blob_id}")
    assert response.status_code == 404


async def test_another_principals_blob_is_404(http: httpx2.AsyncClient) -> None:
    blob_id = await put(http)
    alice = {"authorization": "Bearer alice-token"}
    assert (await http.get(f"/blobs/{blob_id}", headers=alice)).status_code == 404
    assert (await http.head(f"/blobs/{blob_id}", headers=alice)).status_code == 404


@pytest.mark.parametrize(("method", "path"), [("POST", "/blobs"), ("GET", "/blobs"), ("PUT", "/blobs/blob:0")])
async def test_other_methods_are_405(http: httpx2.AsyncClient, method: str, path: str) -> None:
    response = await http.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"]


async def test_a_blob_over_the_limit_is_413_and_leaves_nothing(http: httpx2.AsyncClient, server: Serving) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * 65_536

    for content in (b"x" * 300_001, pieces()):
        response = await http.put("/blobs", content=content)
        assert (response.status_code, response.json()["error"]["data"]["type"]) == (413, "PayloadTooLarge")
    assert server.blobs.held == {}


async def test_a_full_quota_is_413(http: httpx2.AsyncClient, server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(_principal: Principal, _kind: str, _chunks: AsyncIterator[bytes]) -> BlobInfo:
        raise QuotaExceeded("quota", "must not be passed")

    monkeypatch.setattr(server.blobs, "put", full)
    response = await http.put("/blobs", content=DATA)
    assert (response.status_code, response.json()["error"]["data"]["type"]) == (413, "QuotaExceeded")


async def test_a_blob_without_a_kind_is_octets(http: httpx2.AsyncClient) -> None:
    blob_id = (await http.put("/blobs", content=b"x")).json()["blob_id"]
    assert (await http.get(f"/blobs/{blob_id}")).headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize("headers", [{"content-range": "bytes 0-1/2"}, {"content-encoding": "gzip"}])
async def test_partial_and_encoded_uploads_are_refused(http: httpx2.AsyncClient, headers: dict[str, str]) -> None:
    assert (await http.put("/blobs", content=b"xx", headers=headers)).status_code == 400


async def test_query_parameters_are_refused(http: httpx2.AsyncClient) -> None:
    assert (await http.put("/blobs?ttl=1", content=b"x")).status_code == 400
    assert (await http.get(f"/blobs/{await put(http)}?download=1")).status_code == 400


async def test_an_upload_that_breaks_off_leaves_nothing(server: Serving) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head("PUT", "/blobs", "Content-Length: 1000") + b"x" * 10)
    await writer.drain()
    writer.close()
    await until(lambda: b'path="/blobs",status="499"' in server.metrics.render())
    assert server.blobs.held == {}


async def test_a_download_that_breaks_off_stops_reading(server: Serving, http: httpx2.AsyncClient) -> None:
    blob_id = await put(http)
    info, _ = server.blobs.held[blob_id]
    size = 64 * 1024 * 1024
    big = BlobInfo(blob_id, info.kind, size, info.sha256, info.owner, 0.0, None)
    server.blobs.held[blob_id] = big, b"x" * size
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=65536)
    writer.write(head("GET", f"/blobs/{blob_id}"))
    await within(reader.readuntil(b"\r\n\r\n"))
    assert server.blobs.reading == 1
    writer.transport.abort()
    await until(lambda: not server.blobs.reading)
    assert b'skillyard_blob_transfer_bytes_total{direction="out"}' in server.metrics.render()


@given(st.integers(0, 40), st.text("bytes=-0123456789, ", max_size=16) | st.from_regex(r"bytes=\d{0,2}-\d{0,2}"))
def test_a_range_lies_within_or_is_refused(size: int, header: str) -> None:
    try:
        part = blobs.read_range(header, size)
    except RangeNotSatisfiable:
        return
    if part is not None:
        assert 0 <= part.start < part.start + part.length <= size
