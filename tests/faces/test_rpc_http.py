"""``POST /rpc`` over real HTTP. requirements.toml says which rule each test holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from skillyard.domain.errors import Busy, SkillNotFound
from skillyard.domain.principal import Principal
from skillyard.faces.http.app import HttpLimits
from tests.faces.support import AUTH, JSON, Hanging, Serving, call, serving, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving(HttpLimits(rpc_body=2000, rpc_bodies=5000)) as it:
        yield it


@pytest.fixture
async def http(server: Serving) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url, headers=AUTH, trust_env=False) as client:
        yield client


def code(response: httpx2.Response) -> int:
    """The code of a JSON-RPC error, which must be all that the body is."""
    body = response.json()
    assert set(body) == {"jsonrpc", "id", "error"}
    assert response.headers["content-type"] == "application/json"
    return int(body["error"]["code"])


async def test_a_call_is_answered_with_200(http: httpx2.AsyncClient) -> None:
    response = await http.post("/rpc", content=call("list_skills", {"limit": 3}, "a"), headers=JSON)
    assert response.status_code == 200
    assert response.json() == {"jsonrpc": "2.0", "id": "a", "result": {"echo": {"limit": 3}}}


@pytest.mark.parametrize(
    "kind",
    ["application/json; charset=utf-8", "Application/JSON;charset=UTF-8", 'application/json; charset="utf-8"'],
)
async def test_json_in_utf8_is_taken(http: httpx2.AsyncClient, kind: str) -> None:
    response = await http.post("/rpc", content=call("list_skills"), headers={"content-type": kind})
    assert response.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": "application/json5"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
async def test_other_content_is_415(http: httpx2.AsyncClient, headers: dict[str, str]) -> None:
    response = await http.post("/rpc", content=call("list_skills"), headers=headers)
    assert (response.status_code, code(response)) == (415, -32600)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_other_methods_are_405(http: httpx2.AsyncClient, method: str) -> None:
    response = await http.request(method, "/rpc")
    assert (response.status_code, code(response), response.headers["allow"]) == (405, -32600, "POST")


@pytest.mark.parametrize(
    ("body", "expected"), [(b"{", -32700), (b"", -32700), (b"[]", -32600), (b"1", -32600), (b"{}", -32600)]
)
async def test_parse_and_envelope_errors_are_400(http: httpx2.AsyncClient, body: bytes, expected: int) -> None:
    response = await http.post("/rpc", content=body, headers=JSON)
    assert (response.status_code, code(response)) == (400, expected)


async def test_a_batch_over_the_limit_is_400(http: httpx2.AsyncClient) -> None:
    body = b"[" + b",".join([call("list_skills")] * 17) + b"]"
    response = await http.post("/rpc", content=body, headers=JSON)
    assert (response.status_code, code(response)) == (400, -32600)


async def test_errors_past_the_envelope_are_200(http: httpx2.AsyncClient, server: Serving) -> None:
    async def missing(_principal: Principal, _params: dict[str, Any]) -> dict[str, Any]:
        raise SkillNotFound("name", "no such skill")

    async def broken(_principal: Principal, _params: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("boom")

    server.engine.handlers |= {"describe_skill": missing, "read_blob": broken}
    for method, expected in (("describe_skill", -32602), ("nope", -32601), ("read_blob", -32603)):
        response = await http.post("/rpc", content=call(method), headers=JSON)
        assert (response.status_code, code(response)) == (200, expected)
    batch = b"[1," + call("describe_skill") + b"]"
    assert (await http.post("/rpc", content=batch, headers=JSON)).status_code == 200


async def test_notifications_are_204_without_a_body(http: httpx2.AsyncClient) -> None:
    single = json.dumps({"jsonrpc": "2.0", "method": "list_skills"}).encode()
    refused = json.dumps({"jsonrpc": "2.0", "method": "run_code", "params": {}}).encode()
    for body in (single, refused, b"[" + single + b"," + refused + b"]"):
        response = await http.post("/rpc", content=body, headers=JSON)
        assert (response.status_code, response.content) == (204, b"")


async def test_a_body_over_the_cap_is_413(http: httpx2.AsyncClient, server: Serving) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b" " * 100

    for content in (b" " * 2001, pieces()):
        response = await http.post("/rpc", content=content, headers=JSON)
        assert (response.status_code, code(response)) == (413, -32600)
    exact = call("list_skills")
    response = await http.post("/rpc", content=exact + b" " * (2000 - len(exact)), headers=JSON)
    assert response.status_code == 200


async def test_no_token_is_401(server: Serving) -> None:
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as http:
        response = await http.post("/rpc", content=call("list_skills"), headers=JSON)
    assert (response.status_code, code(response)) == (401, -32001)
    assert response.headers["www-authenticate"] == 'Bearer realm="skillyard"'


@pytest.mark.parametrize("value", ["Bearer wrong", "Bearer", "Basic cm9vdA==", "root-token", ""])
async def test_a_bad_token_is_401(server: Serving, value: str) -> None:
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as http:
        headers = JSON | {"authorization": value}
        response = await http.post("/rpc", content=call("list_skills"), headers=headers)
    assert (response.status_code, code(response)) == (401, -32001)
    assert 'error="invalid_token"' in response.headers["www-authenticate"]
    assert server.engine.calls == []


async def test_a_missing_scope_is_403(http: httpx2.AsyncClient, server: Serving) -> None:
    headers = JSON | {"authorization": "Bearer alice-token"}
    response = await http.post("/rpc", content=call("execute_skill", {"name": "a"}, 9), headers=headers)
    assert (response.status_code, code(response), response.json()["id"]) == (403, -32003, 9)
    batch = await http.post("/rpc", content=b"[" + call("execute_skill") + b"]", headers=headers)
    assert (batch.status_code, batch.json()[0]["error"]["code"]) == (200, -32003)
    assert server.engine.calls == []


async def test_busy_is_429(http: httpx2.AsyncClient, server: Serving) -> None:
    async def busy(_principal: Principal, _params: dict[str, Any]) -> dict[str, Any]:
        raise Busy("too many runs", retry_after_ms=1500)

    server.engine.handlers["run_code"] = busy
    response = await http.post("/rpc", content=call("run_code"), headers=JSON)
    assert (response.status_code, code(response), response.headers["retry-after"]) == (429, -32005, "2")


async def test_a_draining_server_is_503(http: httpx2.AsyncClient, server: Serving) -> None:
    server.lifecycle.drain()
    response = await http.post("/rpc", content=call("list_skills"), headers=JSON)
    assert (response.status_code, code(response), response.headers["retry-after"]) == (503, -32005, "1")


async def test_principals_are_told_apart(http: httpx2.AsyncClient, server: Serving) -> None:
    for token in ("alice-token", "bob-token"):
        headers = JSON | {"authorization": f"bearer {token}"}
        await http.post("/rpc", content=call("run_code"), headers=headers)
    assert [who for who, _, _ in server.engine.calls] == ["alice", "bob"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.1:99", "[::1]:1", "LocalHost"])
async def test_our_own_names_are_taken(http: httpx2.AsyncClient, host: str) -> None:
    assert (await http.get("/healthz", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil@127.0.0.1", "127.0.0.1/x", "", "[::1", "10.0.0.1"]
)
async def test_another_host_is_refused(http: httpx2.AsyncClient, server: Serving, host: str) -> None:
    response = await http.post("/rpc", content=call("list_skills"), headers=JSON | {"host": host})
    assert (response.status_code, code(response)) == (421, -32600)
    assert server.engine.calls == []


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost"])
async def test_another_origin_is_refused(http: httpx2.AsyncClient, server: Serving, origin: str) -> None:
    response = await http.post("/rpc", content=call("list_skills"), headers=JSON | {"origin": origin})
    assert (response.status_code, code(response)) == (403, -32003)
    assert server.engine.calls == []


async def test_our_own_origin_is_taken(http: httpx2.AsyncClient, server: Serving) -> None:
    response = await http.post("/rpc", content=call("list_skills"), headers=JSON | {"origin": server.url})
    assert response.status_code == 200
    assert not [name for name in response.headers if name.startswith("access-control")]


async def test_answers_carry_security_headers_and_no_banner(http: httpx2.AsyncClient) -> None:
    for response in (await http.get("/healthz"), await http.get("/nothing")):
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert "server" not in response.headers


async def test_bodies_together_are_bounded_and_one_principals_leave_room(
    http: httpx2.AsyncClient, server: Serving
) -> None:
    hanging = Hanging()
    server.engine.handlers["run_code"] = hanging
    padding = b" " * 1900

    def post(method: str, token: str) -> asyncio.Task[httpx2.Response]:
        headers = {**JSON, "authorization": f"Bearer {token}"}
        return asyncio.create_task(http.post("/rpc", content=call(method) + padding, headers=headers))

    first = [post("run_code", "alice-token")]
    await until(lambda: len(server.engine.calls) == 1)
    too_much = await post("run_code", "alice-token")
    assert (too_much.status_code, code(too_much), too_much.headers["retry-after"]) == (429, -32005, "1")
    first.append(post("run_code", "bob-token"))
    await until(lambda: len(server.engine.calls) == 2)
    full = await post("list_skills", "root-token")
    assert (full.status_code, code(full)) == (503, -32005)
    hanging.released.set()
    assert [r.status_code for r in await asyncio.gather(*first)] == [200, 200]
    again = await post("run_code", "alice-token")
    assert again.status_code == 200


async def test_an_unknown_path_is_404_only_for_principals(http: httpx2.AsyncClient, server: Serving) -> None:
    for path in ("/", "/rpc/", "/RPC", "/healthz/", "/blobs/", "/docs"):
        assert (await http.get(path)).status_code == 404
        async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as nobody:
            assert (await nobody.get(path)).status_code == 401
