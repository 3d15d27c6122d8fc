"""By which names a server lets itself be called."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from skillyard.faces.http.guard import Hosts, is_loopback
from skillyard.faces.http.server import MAX_CONNECTIONS
from tests.faces.support import Hanging, Serving, call, head, post, serving, within
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
