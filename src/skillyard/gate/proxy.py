"""The port for programs that know proxies: HTTP and SOCKS, told apart by the first byte."""

from __future__ import annotations

import asyncio

from skillyard.gate import socks
from skillyard.gate.http import proxy
from skillyard.gate.relay.stream import Stream
from skillyard.gate.session import Session


async def serve(session: Session, client: Stream) -> None:
    """Returns when the connection is over; raises what streams raise, and Trouble once the client was told."""
    async with asyncio.timeout(session.limits.idle_s):  # some programs connect ahead
        first = await client.read()
    client.unread(first)
    if not first:
        client.close()
    elif first[0] in socks.VERSIONS:
        await socks.serve(session, client)
    else:
        await proxy.serve(session, client)
