"""Judges and counts calls of tools by sandboxed code; the server answers them.

A call is four bytes of its length and one JSON object with ``server``, ``tool`` and ``arguments``; an answer has the
same frame. Nothing else can be asked on this port. The gate writes anew what it passes on.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable

from skillyard.domain.foreign_json import BadJson, parse_json
from skillyard.domain.network.session import TOOLS_PORT, Connection, ToolBudget
from skillyard.gate.relay.guard import Ended
from skillyard.gate.relay.stream import Stream
from skillyard.gate.session import Session

VIA = "tools"
MOST_CALL = 2 << 20
"""Bytes of one call."""
MOST_AT_ONCE = 32
"""Calls of one run that the server works on at once."""
_HEAD = 4
_NAME = 64
_LAYER = "tools"

Ask = Callable[[int, bytes], bool]
"""Sends a call with its number to the server; False when there is none."""


class Refusal(Exception):
    """A call that is not passed on."""


class ToolDesk:
    """Passes on the calls of one run within its budget."""

    def __init__(self, budget: ToolBudget, ask: Ask) -> None:
        self._budget = budget
        self._ask = ask
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._calls = 0
        self._bytes = 0

    async def call(self, request: bytes) -> bytes:
        """Returns the answer of the server. Raises Refusal."""
        if self._calls >= self._budget.calls:
            raise Refusal(f"the run has made its {self._budget.calls} calls of tools")
        if len(self._waiting) >= MOST_AT_ONCE:
            raise Refusal(f"the run has {MOST_AT_ONCE} calls of tools at work; make fewer at once")
        self._calls += 1
        self._count(len(request))
        understood = _understood(request)
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            if not self._ask(number, understood):
                raise Refusal("skillyard is away")
            told = await answer
        finally:
            del self._waiting[number]
        self._count(len(told))
        return told

    def answered(self, number: int, answer: bytes) -> None:
        """Takes an answer of the server. One that nobody waits for is dropped."""
        if (waiting := self._waiting.get(number)) is not None and not waiting.done():
            waiting.set_result(answer)

    def close(self) -> None:
        """Ends all calls at work."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Ended("the session is over"))

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self._budget.bytes:
            raise Refusal(f"the calls of the run and their answers are more than {self._budget.bytes} bytes")


def _understood(request: bytes) -> bytes:
    try:
        told = parse_json(request)
    except BadJson as bad:
        raise Refusal(f"the call is not valid: {bad}") from None
    if not isinstance(told, dict) or told.keys() != {"server", "tool", "arguments"}:
        raise Refusal("a call has the members server, tool and arguments alone")
    for name in ("server", "tool"):
        if not isinstance(told[name], str) or len(told[name]) > _NAME:
            raise Refusal(f"{name}: must be a name of at most {_NAME} characters")
    if not isinstance(told["arguments"], dict):
        raise Refusal("arguments: must be an object")
    return json.dumps(told, separators=(",", ":")).encode()


async def serve(session: Session, client: Stream) -> None:
    """Serves one connection: calls one after another, until the client ends it. Raises as streams do."""
    desk = session.tools
    if desk is None:
        session.refuse(VIA, VIA, TOOLS_PORT, "the run may call no tools", layer=_LAYER)
        client.reset()
        return
    at = session.elapsed_ms()
    note = Connection(VIA, VIA, TOOLS_PORT, allowed=True, layer=_LAYER, count=1, first_ms=at, last_ms=at)
    try:
        while (head := await _exactly(client, _HEAD, patient=True)) is not None:
            size = int.from_bytes(head, "big")
            if size > MOST_CALL:
                await _say(client, note, _refused(f"a call is at most {MOST_CALL} bytes"))
                return
            request = await _exactly(client, size)
            if request is None:
                return
            note.sent_bytes += _HEAD + size
            try:
                answer = await desk.call(request)
            except Refusal as refusal:
                session.refuse(VIA, VIA, TOOLS_PORT, str(refusal), layer=_LAYER)
                answer = _refused(str(refusal))
            await _say(client, note, answer)
    finally:
        note.last_ms = session.elapsed_ms()
        session.log.add(note)


async def _say(client: Stream, note: Connection, answer: bytes) -> None:
    note.received_bytes += _HEAD + len(answer)
    await client.write(len(answer).to_bytes(_HEAD, "big") + answer)


async def _exactly(client: Stream, size: int, *, patient: bool = False) -> bytes | None:
    """Returns the next ``size`` bytes, None at the end of the connection before that."""
    data = bytearray()
    while len(data) < size:
        piece = await client.read(min(1 << 16, size - len(data)), patient=patient and not data)
        if not piece:
            return None
        data += piece
    return bytes(data)


def _refused(why: str) -> bytes:
    return json.dumps({"error": {"type": "PolicyRefused", "message": why}}).encode()
