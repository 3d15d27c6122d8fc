"""The server's life: start, probes, drain, stop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2
import pytest

from skillyard.faces.http.lifecycle import Lifecycle
from skillyard.faces.http.server import HttpServer, listen, url_of
from skillyard.faces.http.service import StopRequest, on_signals, run_service
from tests.faces.support import AUTH, JSON, Engine, Hanging, Serving, call, serving, until, within

pytestmark = pytest.mark.anyio


def client(server: Serving) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=server.url, headers=AUTH, trust_env=False)


async def run_code(server: Serving, hanging: Hanging) -> asyncio.Task[httpx2.Response]:
    """A run in flight."""
    server.engine.handlers["run_code"] = hanging

    async def post() -> httpx2.Response:
        async with client(server) as http:
            return await http.post("/rpc", content=call("run_code"), headers=JSON)

    task = asyncio.create_task(post())
    await within(hanging.started.wait())
    return task


async def test_probes_need_no_token() -> None:
    async with serving() as server, httpx2.AsyncClient(base_url=server.url, trust_env=False) as http:
        assert (await http.get("/healthz")).json() == {"status": "ok"}
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()) == (200, {"status": "ready", "backend": "none"})
        server.lifecycle.drain()
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        assert (await http.post("/healthz")).status_code == 405


async def test_metrics_need_the_admin_scope() -> None:
    async with serving() as server, client(server) as http:
        assert b"skillyard_http_responses_total" in (await http.get("/metrics")).content
        alice = {"authorization": "Bearer alice-token"}
        assert (await http.get("/metrics", headers=alice)).status_code == 403


async def test_a_run_in_flight_is_finished() -> None:
    async with serving() as server:
        hanging = Hanging()
        task = await run_code(server, hanging)
        server.stop()
        await until(lambda: server.lifecycle.phase == "draining")
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", server.port)
        hanging.released.set()
        assert (await within(task)).json()["result"] == {"status": "completed"}
        await within(server.done)


async def test_a_run_that_outlasts_the_grace_is_ended_and_its_caller_gets_the_record() -> None:
    async with serving(grace_s=0.05) as server:
        hanging = Hanging()
        task = await run_code(server, hanging)
        server.stop()
        await within(server.engine.ending.wait())
        hanging.released.set()
        assert (await within(task)).json()["result"] == {"status": "completed"}
        assert not hanging.cancelled.is_set()
        await within(server.done)


async def test_a_run_that_cannot_be_ended_is_cancelled_and_answered() -> None:
    async with serving(grace_s=0.05) as server:
        hanging = Hanging()
        task = await run_code(server, hanging)
        server.stop()
        response = await within(task)
        assert hanging.cancelled.is_set()
        assert (response.status_code, response.json()["error"]["code"]) == (503, -32005)
        await within(server.done)


async def test_a_second_request_to_stop_waits_for_nothing() -> None:
    async with serving(grace_s=1000) as server:
        hanging = Hanging()
        task = await run_code(server, hanging)
        server.stop()
        server.stop()
        assert (await within(task)).status_code == 503
        await within(server.done)


async def test_an_idle_connection_does_not_hold_the_server_up() -> None:
    async with serving() as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await until(lambda: server.server.server_state.connections)
        server.stop()
        await within(server.done, 3)
        writer.close()


class Slow:
    """Content that becomes ready when told to."""

    def __init__(self) -> None:
        self.go, self.events = asyncio.Event(), list[str]()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[dict[str, Any]]:
        try:
            self.events.append("opening")
            await self.go.wait()
            yield {"backend": "slow"}
        finally:
            self.events.append("closed")


async def _start(content: Any, stop: StopRequest) -> tuple[asyncio.Task[None], str, list[str]]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": lifecycle.phase.encode()})

    lifecycle, announced, sock = Lifecycle(), list[str](), listen("127.0.0.1", 0)
    url = url_of("127.0.0.1", sock)
    run = run_service(
        HttpServer(app),
        sock,
        lifecycle,
        content,
        announce=lambda: announced.append(url),
        end_runs=Engine().end_runs,
        stop=stop,
        grace_s=1,
    )
    return asyncio.create_task(run), url, announced


async def test_it_answers_before_it_is_ready_and_announces_then() -> None:
    slow, stop = Slow(), StopRequest()
    done, url, announced = await _start(slow.open(), stop)
    await until(lambda: slow.events)
    async with httpx2.AsyncClient(trust_env=False) as http:
        assert (await http.get(url)).text == "starting"
        assert announced == []
        slow.go.set()
        await until(lambda: announced)
        assert (await http.get(url)).text == "ready"
    stop()
    await within(done)
    assert (announced, slow.events) == ([url], ["opening", "closed"])


async def test_a_stop_while_starting_undoes_the_start() -> None:
    slow, stop = Slow(), StopRequest()
    done, _, announced = await _start(slow.open(), stop)
    await until(lambda: slow.events)
    stop()
    await within(done)
    assert (announced, slow.events) == ([], ["opening", "closed"])


async def test_a_failing_start_is_raised() -> None:
    class Broken(AbstractAsyncContextManager[dict[str, Any]]):
        async def __aenter__(self) -> dict[str, Any]:
            raise RuntimeError("no walls here")

        async def __aexit__(self, *_: object) -> None: ...

    done, _, announced = await _start(Broken(), StopRequest())
    with pytest.raises(RuntimeError, match="no walls"):
        await within(done)
    assert announced == []


async def test_signals_ask_to_stop() -> None:
    stop = StopRequest()
    with on_signals(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        await within(stop.asked.wait())
        assert not stop.hurry.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        await within(stop.hurry.wait())


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("localhost", "localhost")]
)
async def test_the_url_is_one_that_can_be_opened(host: str, shown: str) -> None:
    with listen(host, 0) as sock:
        assert url_of(host, sock) == f"http://{shown}:{sock.getsockname()[1]}"


async def test_a_port_in_use_is_an_error_at_once() -> None:
    with listen("127.0.0.1", 0) as sock:
        sock.listen()
        with pytest.raises(OSError, match="in use"):
            listen("127.0.0.1", sock.getsockname()[1])


async def test_readyz_json_is_one_object() -> None:
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        raw = await within(reader.read())
        writer.close()
    assert json.loads(raw.split(b"\r\n\r\n")[1])["status"] == "ready"
