"""The request of a callback, to endpoints that break it off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from skillyard.domain.network.policy import Policy
from skillyard.domain.network.session import Endpoint, EndpointKind
from skillyard.domain.work.callback import parse_url
from skillyard.engine.commands.courier import Courier, NotDelivered
from tests.unit.engine.network.fake_gate import FakeGate

pytestmark = pytest.mark.anyio
REACHED = b"HTTP/1.1 200 OK\r\n\r\n"


class OpenGate(FakeGate):
    """Reaches one server, whatever it is asked for."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    async def endpoint(self, key: str, kind: EndpointKind) -> Endpoint:
        return Endpoint(kind, self._address, "proof")


@contextlib.asynccontextmanager
async def endpoint_that(said: bytes) -> AsyncIterator[str]:
    """Waits for the greeting in TLS, says something else and closes. Yields its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(REACHED)
        await reader.read(1)
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"{host}:{port}"


@pytest.mark.parametrize(
    "said", [b"", b"no TLS\r\n\r\n" * 9, b"\x15\x03\x01\x00\x02\x02\x28"], ids=["nothing", "words", "alert"]
)
async def test_an_endpoint_that_breaks_off_the_handshake_is_left_at_once(said: bytes) -> None:
    async with endpoint_that(said) as address:
        courier = Courier(OpenGate(address), Policy(), None)
        async with asyncio.timeout(60):
            with pytest.raises(NotDelivered):
                await courier.post("callback_1", parse_url("https://x.org/"), {}, b"{}")
