"""The gate's own process: it takes what its server gives it, gives up the rest, and ends with its server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
from typing import Any

from skillyard.gate.descriptors import Room, raise_limit
from skillyard.gate.dial import Dialer
from skillyard.gate.own_addresses import OwnAddresses
from skillyard.gate.service import Service
from skillyard.sandbox.native import jail
from skillyard.watches import new_event_loop


def main(config: dict[str, Any]) -> None:
    """``config``: ``channel`` is a descriptor of one end of a connected Unix socket, ``uid`` whose process this becomes
    when it is root's, ``read`` directories of Python's."""
    channel = socket.socket(fileno=config["channel"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's, meant for the server, which drains first
    descriptors = raise_limit()
    own = OwnAddresses()
    _load_lazily_imported()
    facts = jail.enter(config["uid"], (*config["read"], *jail.for_the_network()))
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(channel, own, descriptors, facts | {"descriptors": descriptors}))


def _load_lazily_imported() -> None:
    """What a name lookup, a certificate or a traceback would import later, when our files may be out of reach."""
    import encodings.idna
    import encodings.latin_1  # noqa: F401

    with contextlib.suppress(OSError):
        socket.getaddrinfo("localhost", None)


async def _serve(channel: socket.socket, own: OwnAddresses, descriptors: int, facts: dict[str, Any]) -> None:
    service = Service(channel, Dialer(own), Room(descriptors))

    def fault(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(error := context.get("exception"), BaseException):
            service.trouble(error)

    asyncio.get_running_loop().set_exception_handler(fault)
    service.tell({"op": "ready", **facts})
    await service.ended.wait()
    os._exit(0)  # everything of a session is in this process; a lookup that hangs must not keep it
