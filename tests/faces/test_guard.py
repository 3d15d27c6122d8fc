"""By which names a server lets itself be called."""

from __future__ import annotations

import asyncio
import contextlib

import httpx2
import pytest

from skillyard.config.settings import load_settings
from skillyard.domain.errors import InvalidInput
from skillyard.faces.http.guard import Hosts, is_loopback
from skillyard.faces.http.server import MAX_CONNECTIONS
from tests.faces.support import AUTH, JSON, Hanging, Serving, call, head, post, serving, within
from tests.faces.test_connections import Wire


@pytest.mark.parametrize(
    ("bound", "taken", "refused"),
    [
        ("127.0.0.1", ["127.0.0.1", "localhost", "::1"], ["10.0.0.1", "me.example", "", None]),
        ("localhost", ["localhost", "127.0.0.1"], ["10.0.0.1"]),
        ("10.0.0.1", ["10.0.0.1"], ["localhost", "127.0.0.1", "10.0.0.2"]),
        ("0.0.0.0", ["10.0.0.1", "localhost", "fe80::1", "127.0.0.1"], ["me.example", "0.0.0.0.evil", "", None]),
        ("::", ["::1", "2001:db8::1", "10.0.0.1"], ["me.example"]),
    ],
)
def test_names(bound: str, taken: list[str], refused: list[str | None]) -> None:
    hosts = Hosts(bound)
    assert [name for name in taken if name not in hosts] == []
    assert [name for name in refused if name in hosts] == []


def test_the_operators_names_are_taken() -> None:
    assert "yard.example" in Hosts("127.0.0.1", ["Yard.Example"])


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.anyio
async def test_beyond_the_limit_the_connection_that_waited_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillyard.faces.http.server.MAX_CONNECTIONS", 2)
    async with serving() as server:
        first, second, third = [await _wire(server) for _ in range(3)]
        assert await first.closed()
        for wire in (second, third):
            await wire.send(head("GET", "/healthz"))
            assert (await wire.response())[0] == 200
        await _close(first, second, third)
    assert MAX_CONNECTIONS > 2


@pytest.mark.anyio
async def test_beyond_the_limit_of_those_at_work_newcomers_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillyard.faces.http.server.MAX_CONNECTIONS", 2)
    async with serving() as server:
        hanging = server.engine.handlers["run_code"] = Hanging()
        working = [await _wire(server) for _ in range(2)]
        for wire in working:
            hanging.started.clear()
            await wire.send(post(call("run_code")))
            await within(hanging.started.wait())
        late = await _wire(server)
        await late.send(post(call("run_code")))
        assert (await late.response())[0] == 503
        hanging.released.set()
        assert [(await wire.response())[0] for wire in working] == [200, 200]
        await _close(*working, late)


async def _close(*wires: Wire) -> None:
    for wire in wires:
        wire.writer.close()
        with contextlib.suppress(ConnectionError):
            await wire.writer.wait_closed()


async def _wire(server: Serving) -> Wire:
    return Wire(*await within(asyncio.open_connection("127.0.0.1", server.port)))


PAGE = "https://app.example"


@pytest.mark.anyio
async def test_pages_that_the_operator_named_may_call_and_see_answers() -> None:
    """Others may neither, and nobody's page sees what a service answers. No cookie is a credential."""
    async with serving(origins=(PAGE,)) as server, httpx2.AsyncClient(base_url=server.url, trust_env=False) as http:

        async def asked(origin: str, method: str, path: str, **headers: str) -> tuple[int, str | None]:
            body = call("list_skills") if method == "POST" else None
            answer = await http.request(method, path, headers={"origin": origin, **headers}, content=body)
            assert "access-control-allow-credentials" not in answer.headers
            return answer.status_code, answer.headers.get("access-control-allow-origin")

        before = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        server.engine.handlers["list_skills"] = _nothing
        assert await asked(PAGE, "OPTIONS", "/rpc", **before) == (200, PAGE)
        assert await asked(PAGE, "POST", "/rpc", **AUTH, **JSON) == (200, PAGE)
        assert await asked(PAGE, "POST", "/rpc", **JSON) == (401, PAGE)
        for origin in ("https://evil.example", "null", PAGE.upper(), f"{PAGE}.evil", "http://app.example"):
            assert (await asked(origin, "OPTIONS", "/rpc", **before))[1] is None
            status, seen = await asked(origin, "POST", "/rpc", **AUTH, **JSON)
            assert (status, seen) in [(403, None), (200, None)], origin
            assert status == 403 or origin == PAGE.upper(), "names of hosts have no case"
        assert (await asked(PAGE, "OPTIONS", "/services/a/80/", **before))[1] is None
        assert (await asked(PAGE, "GET", "/services/a/80/", **AUTH))[1] is None


async def _nothing(*_: object) -> dict[str, object]:
    return {"skills": [], "next_cursor": None, "revision": "1"}


@pytest.mark.parametrize(
    "origin", ["*", "null", "https://app.example/", "HTTPS://app.example", "app.example", "https://a b", "https://*"]
)
def test_origins_that_are_none_are_refused(origin: str) -> None:
    with pytest.raises(InvalidInput, match=r"server.allowed_origins: must be origins"):
        load_settings(server={"allowed_origins": [origin]})
    assert load_settings(server={"allowed_origins": [PAGE]}).server.allowed_origins == (PAGE,)
