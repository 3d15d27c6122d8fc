"""Serves programs that know no proxy, whatever address they dial.

The sandbox's kernel brings them here, and the accepted socket's own name is the address that they dialled.
"""

from __future__ import annotations

import asyncio
import contextlib

from skillyard.gate.failures import Failure, Refused, Unreachable
from skillyard.gate.relay.first_bytes import HTTP_PORT, TLS_PORT, refusal_for, sniff
from skillyard.gate.relay.relay import tunnel
from skillyard.gate.relay.stream import Stream
from skillyard.gate.session import Session

VIA = "direct"
_MOST_WORDS = 1 << 16
_GRACE_S = 0.5
"""Time for the first bytes of a refused client: most speak at once, and one that waits for the server must not wait."""


async def serve(session: Session, client: Stream) -> None:
    """Serves one connection. Raises as streams do, and Failure once the client was told."""
    address, port = client.local
    try:
        upstream = await session.reach(VIA, address, port)
    except (Refused, Unreachable) as failure:
        await _tell(session, client, port, failure)
        raise
    except BaseException:
        client.reset()
        raise
    await tunnel(session, client, upstream)


async def _tell(session: Session, client: Stream, port: int, failure: Failure) -> None:
    """Tells a client of the refusal.

    On the ports of the web it is told in its own protocol, once it has spoken; others are reset at once."""
    if port not in (TLS_PORT, HTTP_PORT):
        client.reset()
        return
    said = b""
    with contextlib.suppress(OSError):
        async with asyncio.timeout(min(_GRACE_S, session.limits.header_s)):
            while len(said) < _MOST_WORDS and (data := await client.read()):
                said += data
                if (kind := sniff(said)) is not None:
                    await client.write(refusal_for(kind, failure.reason))
                    break
    await client.finish()
