"""The client against a real HTTP server: both transports give the same answers and the same errors."""

from __future__ import annotations

import io
import os
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skillyard.client import Client, SyncClient, errors, wire
from skillyard.client.discovery import ServerUrl
from skillyard.client.httpx_transport import HttpxTransport
from skillyard.client.sync import BlockingTransport
from skillyard.client.transport import Request, Response
from tests.unit.client.damaging import Damaging
from tests.unit.client.yardserver import TOKEN, Refusal, YardServer, completed, failed, serving

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024


@pytest.fixture
def yard() -> Iterator[YardServer]:
    with serving() as server:
        yield server


@pytest.fixture(params=[HttpxTransport, BlockingTransport], ids=["httpx2", "blocking"])
async def client(request: pytest.FixtureRequest, yard: YardServer) -> AsyncIterator[Client]:
    async with Client(yard.url, TOKEN, transport=request.param) as client:
        yield client


async def test_a_run_carries_every_parameter_and_comes_back_as_a_value(client: Client, yard: YardServer) -> None:
    yard.methods["execute_skill"] = lambda params: completed({"n": 1}, output_blobs=["blob:x"], usage={})
    asked: dict[str, Any] = {
        "version": "1.0.0",
        "input_blobs": ["blob:a"],
        "mount_skills": ["b.c"],
        "timeout_ms": 1000,
        "limits": {"memory_mb": 64},
        "idempotency_key": "k",
        "detach": True,
    }
    run = await client.execute_skill("a.b", {"x": "é"}, **asked)
    assert yard.calls == [("execute_skill", {"name": "a.b", "args": {"x": "é"}, **asked})]
    assert (run.ok, run.output, run.output_blobs) == (True, {"n": 1}, ("blob:x",))
    assert run["usage"] == {}
    assert run.raise_for_status() is run


async def test_a_failed_run_raises_only_when_asked_to(client: Client, yard: YardServer) -> None:
    yard.methods["run_code"] = lambda params: failed("ValueError", "no such column")
    run = await client.run_code("def main(args): ...")
    assert (run.status, run.ok) == ("failed", False)
    with pytest.raises(errors.RunFailed, match=r"run_1 failed: ValueError: no such column") as caught:
        run.raise_for_status()
    assert (caught.value.type, caught.value.run) == ("ValueError", run)


async def test_parameters_left_out_are_not_sent(client: Client, yard: YardServer) -> None:
    yard.methods["list_skills"] = lambda params: {"skills": [], "next_cursor": None}
    yard.methods["run_code"] = lambda params: completed()
    await client.list_skills()
    await client.run_code("x")
    assert yard.calls == [("list_skills", {}), ("run_code", {"language": "python", "code": "x"})]


async def test_environments_are_named_in_one_of_three_ways(client: Client, yard: YardServer) -> None:
    for act in ("list", "show", "build", "remove"):
        yard.methods[f"environments.{act}"] = lambda params: {"said": sorted(params)}
    assert await client.list_environments() == {"said": []}
    assert await client.show_environment("data") == {"said": ["environment"]}
    assert await client.build_environment(skill="a.b", version="1.0.0", wait=False) == {
        "said": ["skill", "version", "wait"]
    }
    assert await client.remove_environment(packages=("six",), forget=True) == {"said": ["forget", "packages"]}
    assert yard.calls[-1][1] == {"packages": ["six"], "forget": True}


async def test_a_text_is_no_list_of_rules(client: Client, yard: YardServer) -> None:
    """Nor are its letters: the server refuses it by name."""
    yard.methods["run_code"] = lambda params: completed()
    await client.run_code("x", network="x.com")
    assert yard.calls[0][1]["network"] == "x.com"


async def test_bytes_become_base64(client: Client, yard: YardServer) -> None:
    yard.methods["create_blob"] = lambda params: {"blob_id": "blob:1", "size_bytes": 2}
    await client.create_blob(b"\xff\x00", "image/png")
    await client.create_blob("text", "text/plain")
    assert [params for _, params in yard.calls] == [
        {"content": "/wA=", "kind": "image/png", "encoding": "base64"},
        {"content": "text", "kind": "text/plain"},
    ]


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (Refusal(-32602, "name: no skill 'x'", type="SkillNotFound"), errors.SkillNotFound),
        (Refusal(-32602, "args: must be an object", type="InvalidParams"), errors.InvalidParams),
        (Refusal(-32004, "seccomp", type="ProtectionMissing"), errors.ProtectionMissing),
        (Refusal(-32603, "it broke", type="SandboxError"), errors.SandboxError),
        (Refusal(-32019, "new in 2030", type="Unheard"), errors.RpcError),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_errors_keep_code_type_message_and_data(
    client: Client, yard: YardServer, refusal: Refusal, expected: type[errors.RpcError]
) -> None:
    def refuse(params: dict[str, Any]) -> dict[str, Any]:
        raise refusal

    yard.methods["describe_skill"] = refuse
    with pytest.raises(errors.RpcError) as caught:
        await client.describe_skill("x")
    error = caught.value
    assert type(error) is expected
    assert {"code": error.code, "message": error.message, "data": error.data} == refusal.error
    assert error.type == refusal.error["data"]["type"]


async def test_busy_says_when_to_come_again(client: Client, yard: YardServer) -> None:
    def busy(params: dict[str, Any]) -> dict[str, Any]:
        raise Refusal(-32005, "too many runs", type="Busy", retry_after_ms=250)

    yard.methods["run_code"] = busy
    with pytest.raises(errors.Busy) as caught:
        await client.run_code("x", idempotency_key="k")
    assert caught.value.retry_after_ms == 250
    assert len(yard.calls) == 1


async def test_a_wrong_token_is_an_authentication_error(yard: YardServer) -> None:
    async with Client(yard.url, "another-token") as client:
        with pytest.raises(errors.Unauthenticated):
            await client.list_skills()


async def test_parameters_that_json_cannot_carry_are_refused_before_sending(client: Client, yard: YardServer) -> None:
    for value in (float("nan"), object()):
        with pytest.raises(errors.BadArgument, match="params of execute_skill"):
            await client.execute_skill("a", {"x": value})
    assert yard.calls == []


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", errors.BadReply),
        (b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\nContent-Length: 0\r\n\r\n", errors.BadReply),
        (b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nbusy", errors.Busy),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", errors.ConnectionLost),
        (b"HTTP/1.1 200 OK\r\nContent-Le", errors.ConnectionLost),
        (b"", errors.ConnectionLost),
        (b'HTTP/1.0 200 OK\r\n\r\n{"jsonrpc":"2.0","id":99,"result":{}}', errors.BadReply),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n{"error":{"code":"seven"}}', errors.BadReply),
    ],
    ids=["text", "redirect", "503", "short-body", "short-head", "nothing", "other-id", "bad-error"],
)
async def test_what_is_no_proper_answer_is_named_so(
    client: Client, yard: YardServer, answer: bytes, expected: type[Exception]
) -> None:
    yard.raw_answer = answer
    with pytest.raises(expected):
        await client.run_code("x")


async def test_silence_ends_in_a_timeout(yard: YardServer) -> None:
    yard.methods["list_skills"] = lambda params: {"skills": [yard.gone.wait(20)]}
    for transport in (HttpxTransport, BlockingTransport):
        async with Client(yard.url, TOKEN, timeout=0.05, transport=transport) as client:
            with pytest.raises(errors.ResponseTimeout, match="silent"):
                await client.list_skills()
    yard.gone.set()


async def test_connections_are_kept_and_a_broken_one_is_replaced(client: Client, yard: YardServer) -> None:
    yard.methods["list_skills"] = lambda params: {"skills": []}
    await client.list_skills()
    await client.list_skills()
    assert yard.connections == 1
    yard.raw_answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    with pytest.raises(errors.BadReply):
        await client.list_skills()
    yard.raw_answer = None
    await client.list_skills()
    assert yard.connections == 2


class Flaky(HttpxTransport):
    """Fails as scripted before it connects, and waits for nothing."""

    def __init__(self, url: ServerUrl, failures: list[Exception]) -> None:
        super().__init__(url)
        self.failures = failures
        self.pauses: list[float] = []

    @asynccontextmanager
    async def send(self, request: Request) -> AsyncGenerator[Response, None]:
        if self.failures:
            raise self.failures.pop(0)
        async with super().send(request) as response:
            yield response

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.mark.parametrize("failure", [errors.Unreachable, errors.ConnectionLost])
async def test_what_changes_nothing_when_repeated_is_repeated(yard: YardServer, failure: type[Exception]) -> None:
    yard.methods["list_skills"] = lambda params: {"skills": []}
    flaky = Flaky(ServerUrl.parse(yard.url), [failure("1"), failure("2")])
    async with Client(yard.url, TOKEN, transport=lambda url: flaky) as client:
        assert await client.list_skills() == {"skills": []}
        assert flaky.pauses == [0.1, 0.2]
        flaky.failures[:] = [failure("1"), failure("2"), failure("3")]
        with pytest.raises(failure, match="3"):
            await client.list_skills()


async def test_a_run_is_repeated_only_with_a_key_and_when_nothing_was_sent(yard: YardServer) -> None:
    yard.methods["run_code"] = lambda params: completed()
    flaky = Flaky(ServerUrl.parse(yard.url), [])
    async with Client(yard.url, TOKEN, transport=lambda url: flaky) as client:
        for failure, key in ((errors.Unreachable, None), (errors.ConnectionLost, "k")):
            flaky.failures[:] = [failure("once")]
            with pytest.raises(failure):
                await client.run_code("x", idempotency_key=key)
        flaky.failures[:] = [errors.Unreachable("once")]
        assert (await client.run_code("x", idempotency_key="k")).ok


@pytest.mark.parametrize(
    ("params", "seconds"),
    [
        ({"timeout_ms": 60_000}, 990),
        ({"limits": {"timeout_ms": 120_000}}, 1050),
        ({}, 4530),
    ],
)
async def test_a_run_is_waited_for_as_long_as_it_may_take(params: dict[str, Any], seconds: float) -> None:
    assert wire.patience("run_code", params, 30) == seconds
    assert wire.patience("list_skills", params, 30) == 30


async def test_nobody_listening_is_unreachable_with_the_mend() -> None:
    with socket.socket() as idle:
        idle.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{idle.getsockname()[1]}"
        for transport in (HttpxTransport, BlockingTransport):
            async with Client(url, TOKEN, retries=0, transport=transport) as client:
                with pytest.raises(errors.Unreachable, match=r"cannot connect to http.*skillyard serve"):
                    await client.list_skills()


def test_a_small_request_is_one_packet(yard: YardServer) -> None:
    yard.methods["run_code"] = lambda params: completed({"n": 1})
    with SyncClient(yard.url, TOKEN) as client:
        for calls in (1, 2):
            assert client.run_code("def main(args): ...").output == {"n": 1}
            assert (yard.connections, _packets_with_data(yard.sockets[0])) == (1, calls)


def _packets_with_data(sock: socket.socket) -> int:
    """Returns how many came: ``tcpi_data_segs_in`` of linux/tcp.h, since Linux 4.6."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    return int(_TCP_INFO.unpack(info)[-1])


_TCP_INFO = struct.Struct("8B24I4Q2I2II")


async def async_pieces() -> AsyncIterator[bytes]:
    for piece in (b"one,", b"two,", b"three"):
        yield piece


@pytest.mark.parametrize(
    "source",
    [
        lambda: b"one,two,three",
        lambda: io.BytesIO(b"one,two,three"),
        lambda: iter([b"one,", b"two,three"]),
        async_pieces,
    ],
    ids=["bytes", "file", "iterator", "async-iterator"],
)
async def test_blobs_go_up_from_any_source(client: Client, yard: YardServer, source: Callable[[], Any]) -> None:
    stored = await client.put_blob(source(), "text/csv")
    assert yard.blobs[stored.blob_id] == ("text/csv", b"one,two,three")
    assert stored.size_bytes == 13
    assert len(stored.sha256) == 64


async def test_a_blob_makes_the_round_trip_through_files(client: Client, yard: YardServer, tmp_path: Path) -> None:
    data = os.urandom(3 * MIB + 17)
    (tmp_path / "in").write_bytes(data)
    up: list[tuple[int, int | None]] = []
    down: list[tuple[int, int | None]] = []
    stored = await client.put_blob(tmp_path / "in", progress=lambda *step: up.append(step))
    fetched = await client.get_blob(stored.blob_id, tmp_path / "out", progress=lambda *s: down.append(s))
    assert (tmp_path / "out").read_bytes() == data
    assert (fetched.size_bytes, fetched.total_bytes) == (len(data), len(data))
    assert up[-1] == down[-1] == (len(data), len(data))
    assert len(up) > 3


async def test_an_empty_blob_is_a_blob(client: Client, tmp_path: Path) -> None:
    stored = await client.put_blob(b"")
    fetched = await client.get_blob(stored.blob_id, tmp_path / "out")
    assert (fetched.size_bytes, (tmp_path / "out").read_bytes()) == (0, b"")


async def test_ranges(client: Client, yard: YardServer) -> None:
    yard.blobs["blob:r"] = ("text/plain", b"0123456789")
    sink = io.BytesIO()
    fetched = await client.get_blob("blob:r", sink, offset=2, length=3)
    assert (sink.getvalue(), fetched.size_bytes, fetched.total_bytes) == (b"234", 3, 10)
    assert [chunk async for chunk in client.stream_blob("blob:r", offset=7)] == [b"789"]
    with pytest.raises(errors.InvalidParams, match="outside"):
        await client.get_blob("blob:r", io.BytesIO(), offset=10)
    with pytest.raises(errors.BadArgument, match="length at least 1"):
        await client.get_blob("blob:r", io.BytesIO(), length=0)


async def test_a_missing_blob_leaves_no_file(client: Client, tmp_path: Path) -> None:
    with pytest.raises(errors.BlobNotFound):
        await client.get_blob("blob:none", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


async def test_damaged_bytes_leave_no_file(client: Client, yard: YardServer, tmp_path: Path) -> None:
    async with Client(yard.url, TOKEN, transport=lambda url: Damaging(HttpxTransport(url))) as damaged:
        stored = await client.put_blob(b"good bytes")
        with pytest.raises(errors.BadReply, match="digest"):
            await damaged.get_blob(stored.blob_id, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


async def test_a_refused_upload_stops_early_and_says_why(client: Client, yard: YardServer) -> None:
    yard.blob_limit = 10
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 4000 * MIB:
            sent += MIB
            yield bytes(MIB)

    with pytest.raises((errors.QuotaExceeded, errors.ConnectionLost)):
        await client.put_blob(endless())
    assert sent < 4000 * MIB


async def test_a_file_that_cannot_be_read_is_named(client: Client, tmp_path: Path) -> None:
    with pytest.raises(errors.BadArgument, match=r"absent: No such file"):
        await client.put_blob(tmp_path / "absent")


def test_the_blocking_client_has_every_method_of_the_other() -> None:
    public = {name for name in dir(Client) if not name.startswith("_")} - {"server"}
    assert public <= set(dir(SyncClient))


def test_the_blocking_client(yard: YardServer, tmp_path: Path) -> None:
    yard.methods["run_code"] = lambda params: completed({"n": 2})
    yard.methods["load_skills_protocol_guide"] = lambda params: {"content": "# Guide"}
    with SyncClient(yard.url, TOKEN) as client:
        assert client.run_code("x", {"a": 1}).output == {"n": 2}
        assert client.load_skills_protocol_guide() == "# Guide"
        stored = client.put_blob(b"abcdef", "text/plain")
        client.get_blob(stored.blob_id, tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == b"abcdef"
        assert b"".join(client.stream_blob(stored.blob_id, offset=4)) == b"ef"
        unread = client.stream_blob(stored.blob_id)
        assert next(unread)
        unread.close()
        assert client.run_code("y").ok
