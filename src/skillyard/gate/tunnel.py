"""A connection that was reached for a sandbox, carried from its first word on."""

from __future__ import annotations

from functools import partial

from skillyard.gate.relay.first_words import FirstWords
from skillyard.gate.relay.guard import Guard
from skillyard.gate.relay.relay import relay
from skillyard.gate.relay.stream import Stream
from skillyard.gate.upstream import Upstream


async def carry(client: Stream, upstream: Upstream) -> None:
    """What is said is held to the host that was allowed. Returns and raises as :func:`relay` does."""
    await relay(client, upstream, guard=guard_of(upstream))


def guard_of(upstream: Upstream) -> Guard:
    """TLS to the hosts that secrets are bound to ends here; placeholders in plain text are refused."""
    interception, name, port = upstream.session.interception, upstream.name, upstream.port
    host = upstream.address if name is None else name
    if interception is None:
        return FirstWords(host, port)
    tls = None
    if name is not None and interception.has(name, port):
        tls = partial(interception.guard, name, port, upstream.carries)
    return FirstWords(host, port, words=interception.unsealed(), tls=tls)
