"""What a sandbox reaches through the gate's process, and what it is told where it may not."""

from __future__ import annotations

import pytest

from skillyard.egress.client import ProcessGate
from tests.egress.gates import Server, echo, plugged, reaching
from tests.egress.rooms import Rooms

pytestmark = pytest.mark.anyio


async def test_a_program_that_knows_no_proxy_talks_to_an_allowed_name(gate: ProcessGate, rooms: Rooms) -> None:
    async with Server(echo) as server:
        box = await plugged(gate, rooms.room(), reaching(server, "db.test"), server.port)
        reader, writer = await box.dial("db.test", server.port)
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello\n"
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        [row] = (await box.session.close()).connections
    assert (row.via, row.host, row.port, row.allowed) == ("direct", "db.test", server.port, True)
    assert (row.sent_bytes, row.received_bytes, row.count) == (6, 6, 1)
