"""Callbacks over a gate that reaches endpoints of the test: they break off, stay silent or take what they are told."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from skillyard.domain.network.policy import Policy
from skillyard.domain.network.rule import parse_rule
from skillyard.domain.network.session import Endpoint, EndpointKind
from skillyard.domain.skill.skill import SkillKind
from skillyard.domain.work.callback import parse_url
from skillyard.engine.commands.callbacks import TO_ONE_HOST
from skillyard.engine.commands.courier import Courier, NotDelivered
from tests.unit.engine.commands.stepping import ANN, start, status, until, watched
from tests.unit.engine.conftest import StoredRig
from tests.unit.engine.fakes import a_skill
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


class Endpoints:
    """Listens for what the gate would connect. ``silent.org`` answers nothing, and ``x.org`` takes everything."""

    def __init__(self) -> None:
        self.open: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        """As many as were open at once."""

    @contextlib.asynccontextmanager
    async def address(self) -> AsyncIterator[str]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()[:2]
            yield f"{host}:{port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            name = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].partition(b":")[0].decode()
            self.open[name] += 1
            self.most[name] = max(self.most[name], self.open[name])
            if name == "silent.org":
                await reader.read()
                self.open[name] -= 1
                return
            writer.write(REACHED)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            await writer.drain()


@pytest.mark.parametrize(
    "said", [b"", b"no TLS\r\n\r\n" * 9, b"\x15\x03\x01\x00\x02\x02\x28"], ids=["nothing", "words", "alert"]
)
async def test_an_endpoint_that_breaks_off_the_handshake_is_left_at_once(said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(REACHED)
        await reader.read(1)
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()[:2]
        courier = Courier(OpenGate(f"{host}:{port}"), Policy(), None)
        async with asyncio.timeout(60):
            with pytest.raises(NotDelivered):
                await courier.post("callback_1", parse_url("https://x.org/"), {}, b"{}")


async def test_a_silent_host_keeps_no_callback_to_another_one_waiting(stored_rig: StoredRig) -> None:
    rig, endpoints = stored_rig, Endpoints()
    rig.principal = ANN
    rig.skills.add(a_skill("acme.notes", kind=SkillKind.INSTRUCTION))
    async with endpoints.address() as address:
        rig.gate = OpenGate(address)
        rig.configure(commands={"callback_hosts": (parse_rule("silent.org:80"), parse_rule("x.org:80"))})
        rig.secrets.values[rig.app.config.commands.callback_secret] = "whsec_c2VjcmV0IHNlY3JldA=="
        for _ in range(12):
            await watched(rig, await start(rig, callback_url="http://silent.org/"))
        delivering = asyncio.create_task(rig.app.callbacks.deliver())
        try:
            await until(lambda: _asked(endpoints, "silent.org"))
            task_id = await start(rig, callback_url="http://x.org/")
            await watched(rig, task_id)
            async with asyncio.timeout(60):
                await until(lambda: _delivered(rig, task_id))
            assert endpoints.most == {"silent.org": TO_ONE_HOST, "x.org": 1}
        finally:
            delivering.cancel()
            await asyncio.gather(delivering, return_exceptions=True)


async def _asked(endpoints: Endpoints, name: str) -> bool:
    return endpoints.most[name] == TO_ONE_HOST


async def _delivered(rig: StoredRig, task_id: str) -> bool:
    return bool((await status(rig, task_id))["callback"]["state"] == "delivered")
