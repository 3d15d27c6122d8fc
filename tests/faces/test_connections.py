"""Clients that are slow, early, malformed or gone, over raw sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from starlette.types import Message

from skillyard.faces.http.app import HttpLimits
from skillyard.faces.http.errors import Unavailable
from skillyard.faces.http.guard import HEAD_BYTES
from skillyard.faces.http.lifecycle import Lifecycle
from skillyard.faces.http.request import HttpCaller, Pace
from skillyard.faces.http.server import CLOSE_PATIENCE_S, KEEP_ALIVE_S, READ_PATIENCE_S, Connection, abort_overdue
from tests.faces.support import ROOT, Hanging, Serving, call, head, post, serving, until, within

pytestmark = pytest.mark.anyio


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving(HttpLimits(pace=Pace(idle_s=0.2, bytes_per_s=1000))) as it:
        yield it


class Wire:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def response(self) -> tuple[int, bytes]:
        """Status and body of the next response, by its Content-Length."""
        raw = await within(self.reader.readuntil(b"\r\n\r\n"))
        status, *lines = raw.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        body = await within(self.reader.readexactly(int(headers.get("content-length", 0))))
        return int(status.split()[1]), body

    async def closed(self) -> bool:
        """Waits for the server to close."""
        try:
            return await within(self.reader.read()) is not None
        except ConnectionError:
            return True


@pytest.fixture
async def wire(server: Serving) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    yield Wire(reader, writer)
    writer.transport.abort()


@pytest.fixture
def hanging(server: Serving) -> Hanging:
    return server.engine.handlers.setdefault("run_code", Hanging())  # type: ignore[return-value]


# Clients that go away


@pytest.mark.parametrize("method", ["run_code", "execute_skill", "runs.wait", "runs.logs", "runs.events"])
async def test_a_disconnect_ends_the_call_and_its_run(server: Serving, wire: Wire, method: str) -> None:
    hanging = server.engine.handlers[method] = Hanging()
    await wire.send(post(call(method)))
    await within(hanging.started.wait())
    wire.writer.close()
    await within(hanging.cancelled.wait())


async def test_a_disconnect_leaves_a_detached_run(server: Serving, wire: Wire, hanging: Hanging) -> None:
    await wire.send(post(call("run_code", {"detach": True})))
    await within(hanging.started.wait())
    wire.writer.close()
    await until(lambda: not server.server.server_state.connections)
    assert not hanging.cancelled.is_set()
    hanging.released.set()
    await until(lambda: b'method="run_code",outcome="ok"' in server.metrics.render())


async def test_a_disconnect_is_seen_behind_a_pipelined_request(server: Serving, wire: Wire, hanging: Hanging) -> None:
    await wire.send(post(call("run_code")))
    await within(hanging.started.wait())
    for _ in range(3):
        await wire.send(post(call("list_skills")))
        await asyncio.sleep(0)
    wire.writer.close()
    await within(hanging.cancelled.wait())


async def test_a_disconnect_in_a_batch_ends_the_rest(server: Serving, wire: Wire, hanging: Hanging) -> None:
    await wire.send(post(b"[" + b",".join([call("run_code"), call("list_skills"), call("run_code")]) + b"]"))
    await within(hanging.started.wait())
    wire.writer.close()
    await within(hanging.cancelled.wait())
    await until(lambda: not server.server.server_state.tasks)
    assert [name for _, name, _ in server.engine.calls] == ["run_code"]


async def test_a_run_that_ends_is_not_disturbed_by_its_watch(wire: Wire, hanging: Hanging) -> None:
    for n in range(3):
        hanging.released.set()
        await wire.send(post(call("run_code", id=n)))
        status, body = await wire.response()
        assert (status, json.loads(body)["id"]) == (200, n)


async def test_a_call_that_was_ended_leaves_its_task_as_it_was() -> None:
    """A limit of time around it must find no other cancellation than its own."""
    lifecycle = Lifecycle()

    async def forever() -> Message:
        return await asyncio.Future()

    async def works() -> None:
        async with HttpCaller(forever, lifecycle) as caller, asyncio.timeout(60) as limit:
            asyncio.get_running_loop().call_soon(lifecycle.stop_waiting)
            with pytest.raises(Unavailable):
                await caller.wait(forever())
            limit.reschedule(0)
            await forever()

    with pytest.raises(TimeoutError):
        await works()


# Pipelining and keep-alive


async def test_pipelined_requests_are_answered_in_order(wire: Wire) -> None:
    await wire.send(b"".join(post(call("list_skills", id=n)) for n in range(20)))
    assert [json.loads((await wire.response())[1])["id"] for _ in range(20)] == list(range(20))


async def test_a_request_in_tiny_pieces(wire: Wire) -> None:
    for byte in post(call("list_skills", id=4)):
        await wire.send(bytes([byte]))
        await asyncio.sleep(0)
    assert json.loads((await wire.response())[1])["id"] == 4


async def test_a_chunked_body(wire: Wire) -> None:
    body = call("list_skills", id=5)
    await wire.send(head("POST", "/rpc", "Content-Type: application/json", "Transfer-Encoding: chunked"))
    for byte in body:
        await wire.send(b"1\r\n" + bytes([byte]) + b"\r\n")
    await wire.send(b"0\r\n\r\n")
    assert json.loads((await wire.response())[1])["id"] == 5


async def test_a_refused_body_does_not_hide_the_answer(server: Serving, wire: Wire) -> None:
    await wire.send(head("POST", "/rpc", "Content-Length: 33554433", "Content-Type: application/json"))
    await wire.send(b" " * 500_000)
    status, body = await wire.response()
    error = json.loads(body)["error"]
    assert (status, error["data"]["type"]) == (413, "PayloadTooLarge")
    assert "store large data as a blob with PUT /blobs, and pass its id in args" in error["message"]
    assert await wire.closed()


async def test_expect_continue_is_not_invited_to_send_what_is_refused(wire: Wire) -> None:
    await wire.send(head("PUT", "/blobs", "Content-Length: 9999999", "Expect: 100-continue", token="wrong"))
    assert (await wire.response())[0] == 401


# Malformed


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /rpc HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /rpc HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /rpc HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * HEAD_BYTES,
        b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    ],
)
async def test_malformed_requests_are_refused_and_closed(server: Serving, wire: Wire, data: bytes) -> None:
    await wire.send(data)
    assert (await within(wire.reader.readline())).split()[1] in (b"400", b"431", b"501")
    assert await wire.closed()
    assert server.engine.calls == []


async def test_http_1_0_without_a_host_is_refused(wire: Wire) -> None:
    await wire.send(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert (await within(wire.reader.readline())).split()[1] == b"421"


async def test_two_authorization_headers_are_refused(wire: Wire) -> None:
    await wire.send(head("GET", "/metrics", "Authorization: Bearer alice-token"))
    assert (await wire.response())[0] == 401


# Slow


async def test_a_body_that_pauses_is_408(wire: Wire) -> None:
    await wire.send(head("POST", "/rpc", "Content-Type: application/json", "Content-Length: 100") + b"{")
    status, body = await wire.response()
    assert (status, json.loads(body)["error"]["data"]["type"]) == (408, "RequestTimeout")
    assert await wire.closed()


async def test_a_body_that_trickles_is_408(wire: Wire) -> None:
    await wire.send(head("POST", "/rpc", "Content-Type: application/json", "Content-Length: 10000"))

    async def trickle() -> None:
        while not wire.writer.is_closing():
            wire.writer.write(b" ")
            await asyncio.sleep(0.05)

    trickling = asyncio.create_task(trickle())
    try:
        assert (await wire.response())[0] == 408
    finally:
        trickling.cancel()


async def test_a_connection_that_never_asks_is_cut(server: Serving, wire: Wire) -> None:
    await wire.send(b"POST /rpc HTTP/1.1\r\nHost: 127.0")
    await _cut_after(server, KEEP_ALIVE_S)
    assert await wire.closed()


async def test_a_connection_in_work_is_not_cut(server: Serving, wire: Wire, hanging: Hanging) -> None:
    await wire.send(post(call("run_code")))
    await within(hanging.started.wait())
    now = asyncio.get_running_loop().time()
    assert abort_overdue(server.server.server_state, now + 1e6) == 0
    hanging.released.set()
    assert (await wire.response())[0] == 200


async def test_a_client_that_does_not_read_is_cut(server: Serving, wire: Wire) -> None:
    await _put_big_blob(server)
    await wire.send(head("GET", "/blobs/blob:0"))
    await until(lambda: server.blobs.reading)
    await _cut_after(server, READ_PATIENCE_S)
    await until(lambda: not server.blobs.reading)


async def test_a_client_that_does_not_take_the_end_is_cut(server: Serving, wire: Wire) -> None:
    (connection,) = await _connections(server)
    connection.transport.pause_reading()
    connection.transport.write(b"x" * 50_000_000)
    connection.transport.close()
    await _cut_after(server, max(CLOSE_PATIENCE_S, READ_PATIENCE_S))
    assert not server.server.server_state.connections


async def _connections(server: Serving) -> set[Connection]:
    state = server.server.server_state
    await until(lambda: state.connections)
    return state.connections  # type: ignore[return-value]


async def _cut_after(server: Serving, seconds: float) -> None:
    """The sweep cuts the only connection ``seconds`` after now, and not earlier."""
    await _connections(server)
    state, loop = server.server.server_state, asyncio.get_running_loop()
    assert abort_overdue(state, loop.time()) == 0
    await until(lambda: abort_overdue(state, loop.time() + seconds + 0.5))
    await until(lambda: not state.connections)


async def _put_big_blob(server: Serving) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(1024):
            yield b"x" * 65_536

    await server.blobs.put(ROOT, "text/plain", pieces())
