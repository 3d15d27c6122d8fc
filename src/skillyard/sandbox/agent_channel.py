"""One byte channel to an agent, and the exchanges on it (:mod:`skillyard.guest.agent`).

Everything that is read here is hostile: an agent lives where foreign code does. Frames, numbers and credit are bounded
and compared with what was asked; the first breach closes the channel.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol

from skillyard.domain.errors import InvalidInput, SandboxFault, SandboxGone
from skillyard.guest.agent import wire
from skillyard.guest.agent.wire import BadFrame
from skillyard.values import dataclass

HELLO_S = 20.0
STALLED_S = 60.0
"""How long an agent may leave a question without a word, or data without credit."""
_READ = 256 * 1024
_GRACE = wire.WINDOW + 64 * 1024
"""Bytes that may come for an exchange which was given up, before the agent knows."""
_FRAME_COST = 64
_ALONE_S, _AGREED_S = 0.02, 1.0
"""How long the proof of the host, or a greeting that no agent waits for, is held back for an order to go with."""
_SMALL = 4096
"""Bytes up to which waiting data is joined."""
_INSTANCE = frozenset("0123456789abcdef")
_TEXT = json.JSONEncoder(separators=(",", ":")).encode


class Reader(Protocol):
    async def read(self, n: int = -1, /) -> bytes:
        """Returns at most ``n`` bytes as soon as there are any; none at the end."""
        ...


class Writer(Protocol):
    def write(self, data: bytes, /) -> None: ...

    async def drain(self) -> None:
        """Returns when there is room for more."""
        ...

    def close(self) -> None: ...


Opener = Callable[[], Awaitable[tuple[Reader, Writer]]]
"""Opens a new channel. It raises SandboxGone once the sandbox is gone."""
Behind = Callable[["Channel"], None]


@dataclass(frozen=True, slots=True)
class Agreed:
    """The nonce of an agent that the host has just made, for the first channel to it. ``ready`` returns when it stands.

    The host says all on that channel to the place to which it gave the key. So it need not wait for the agent's proof
    before it goes on, and takes no word before that proof.
    """

    nonce: str
    ready: Callable[[], Awaitable[None]]


class ChannelLost(SandboxFault):
    """The channel ended, or the agent broke the protocol. The sandbox may live on."""


class AgentRefused(Exception):
    """The agent refused an operation. ``kind`` and ``text`` are its own words, bounded."""

    def __init__(self, kind: str, text: str, first: int) -> None:
        super().__init__(text)
        self.kind, self.text, self.first = kind, text, first


class Exchange:
    """One operation under way. It holds no more data than the credit that was given."""

    def __init__(self, channel: Channel, number: int, window: int) -> None:
        self._channel, self.number, self._window = channel, number, window
        self._pieces: deque[bytes | bytearray] = deque()
        self._allowed, self._credit = window, wire.WINDOW
        self._taken = 0
        self._greeted = False
        self._ended = False
        self._changed = asyncio.Event()
        self._over: Mapping[str, Any] | Exception | None = None

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yields data as it comes, up to its end. Raises AgentRefused, ChannelLost."""
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._take(len(piece))
                yield bytes(piece)
            if self._ended or self._over is not None:
                break
            await self._change(None)
        if isinstance(self._over, Exception):
            raise self._over

    async def result(self, bound_s: float | None = STALLED_S) -> Mapping[str, Any]:
        """Returns the result. Raises AgentRefused, ChannelLost, SandboxFault when none comes in time."""
        while self._over is None:
            await self._change(bound_s)
        if isinstance(self._over, Exception):
            raise self._over
        return self._over

    async def send(self, data: bytes, bound_s: float | None = STALLED_S) -> None:
        """Sends data as there is credit. Raises AgentRefused, ChannelLost."""
        view = memoryview(data)
        while view:
            while self._credit == 0 and self._over is None:
                await self._change(bound_s)
            if isinstance(self._over, Exception):
                raise self._over
            if self._over is not None:
                return
            piece = view[: min(self._credit, wire.PIECE)]
            view = view[len(piece) :]
            self._credit -= len(piece)
            async with self._channel.bulk:  # else each of many would put a piece before a small order of others
                self._channel.write(wire.pack(wire.DATA, self.number, piece))
                await self._channel.drain()

    def whole(self, data: bytes) -> list[bytes]:
        """Returns the frames of data that fits the credit, and of its end."""
        self._credit -= len(data)
        frames = [wire.pack(wire.DATA, self.number, data)] if data else []
        return [*frames, wire.pack(wire.END, self.number)]

    def end(self) -> None:
        """Says that there is no more data."""
        if self._over is None:
            self._channel.write(wire.pack(wire.END, self.number))

    def give_up(self) -> None:
        """Ends the exchange on this side. Idempotent."""
        if self._over is None:
            self._over = ChannelLost("the exchange was given up")
            self._channel.forget(self.number)
        self._pieces.clear()
        self._changed.set()

    @property
    def over(self) -> bool:
        return self._over is not None

    @property
    def quiet(self) -> bool:
        """Returns whether it goes on both ways, and nothing waits to be taken."""
        return self._over is None and not self._ended and not self._pieces

    def _take(self, size: int) -> None:
        self._taken += size
        if self._taken >= self._window // 2 and self._over is None:
            self._channel.write(wire.credit(self.number, self._taken))
            self._allowed += self._taken
            self._taken = 0

    async def _change(self, bound_s: float | None) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(bound_s):
                await self._changed.wait()
        except TimeoutError:
            self.give_up()
            raise SandboxFault(f"the sandbox's agent said nothing for {bound_s:.0f} s") from None

    def take(self, kind: int, payload: bytes) -> None:
        """Takes a frame of the agent. Raises BadFrame."""
        if kind == wire.DATA:
            self._data(payload)
        elif kind == wire.CREDIT:
            size = wire.credit_of(payload)
            if not 0 < size <= wire.WINDOW - self._credit:
                raise BadFrame("credit for what was not sent")
            self._credit += size
        elif kind == wire.END:
            if self._ended:
                raise BadFrame("a second end")
            self._ended = True
        else:
            told = _object(payload)
            self._over = told if kind == wire.REPLY else _refused(told)
        self._changed.set()

    def _data(self, payload: bytes) -> None:
        self._allowed -= len(payload)
        if self._allowed < 0 or self._ended or (not payload and self._greeted):
            raise BadFrame("data beyond its credit, after its end, or empty")
        self._greeted = True
        if self._pieces and 0 < len(self._pieces[-1]) < _SMALL:  # of many small ones each would take room of its own
            last = self._pieces[-1]
            if isinstance(last, bytes):
                last = self._pieces[-1] = bytearray(last)
            last += payload
        else:
            self._pieces.append(payload)

    def lose(self, why: ChannelLost) -> None:
        if self._over is None:
            self._over = why
        self._changed.set()


class Channel:
    """A channel on which both sides have said hello. ``instance`` names the agent."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer
        self._parser = wire.Parser(wire.FROM_AGENT)
        self._exchanges: dict[int, Exchange] = {}
        self._last = 0
        self._grace = 0
        self._expected: tuple[bytes, str, str] | None = None
        """The key and both nonces of an agreed greeting, until the agent answers it."""
        self._first = b""
        """Our last words of the greeting, until they were written: a way whose pieces are requests has one fewer."""
        self._reading: asyncio.Task[None] | None = None
        self.lost = False
        self.instance = ""
        self.version = 0
        self.bulk = asyncio.Lock()

    @classmethod
    async def open(cls, opener: Opener, key: bytes, bound_s: float = HELLO_S, agreed: Agreed | None = None) -> Channel:
        """Opens a channel and proves to both sides that the other knows the key. Raises SandboxGone, ChannelLost."""
        try:
            async with asyncio.timeout(bound_s):
                channel = cls(*await opener())
                try:
                    early = await (channel._hello(key) if agreed is None else channel._begin_agreed(key, agreed))
                except BaseException:
                    channel._writer.close()
                    raise
        except TimeoutError:
            raise ChannelLost(f"the sandbox's agent did not say hello within {bound_s:.0f} s") from None
        except (OSError, EOFError, BadFrame) as error:
            raise ChannelLost(f"the sandbox's agent did not say hello: {error}"[:300]) from None
        channel._reading = asyncio.create_task(channel._read(early))
        return channel

    async def _hello(self, key: bytes) -> list[tuple[int, int, bytes]]:
        nonce = secrets.token_hex(16)
        self.write(wire.pack(wire.HELLO, 0, _encode({"versions": list(wire.VERSIONS), "nonce": nonce})))
        await self._writer.drain()
        frames: list[tuple[int, int, bytes]] = []
        while not frames:
            if not (data := await self._reader.read(_READ)):
                raise EOFError("the channel ended")
            frames = self._parser.feed(data)
        theirs = self._meet(frames[0], key, nonce)
        proof = wire.prove(key, "host", nonce, theirs, self.version)
        self._first = wire.pack(wire.HELLO, 0, _encode({"proof": proof}))
        asyncio.get_running_loop().call_later(_ALONE_S, self.write, b"")
        return frames[1:]

    async def _begin_agreed(self, key: bytes, agreed: Agreed) -> list[tuple[int, int, bytes]]:
        """Greets an agent and proves what we are at once; its answer is looked at when it comes."""
        nonce, self.version = secrets.token_hex(16), wire.VERSIONS[-1]
        proof = wire.prove(key, "host", nonce, agreed.nonce, self.version)
        said = {"versions": [self.version], "nonce": nonce}, {"proof": proof}
        self._expected = key, nonce, agreed.nonce
        self._first = b"".join(wire.pack(wire.HELLO, 0, _encode(one)) for one in said)
        await agreed.ready()
        asyncio.get_running_loop().call_later(_AGREED_S, self.write, b"")
        return []

    def _meet(self, frame: tuple[int, int, bytes], key: bytes, nonce: str) -> str:
        """Takes the agent's answer to our greeting; returns its nonce. Raises BadFrame, SandboxGone."""
        kind, _, payload = frame
        said = _object(payload)
        instance, theirs = said.get("instance"), said.get("nonce")
        version: Any = said.get("version")
        if kind == wire.HELLO and version not in wire.VERSIONS:
            raise SandboxGone(
                f"the sandbox's agent speaks versions {str(said.get('versions'))[:60]}, and we none of them"
            )
        known = isinstance(theirs, str) and wire.is_proof(said.get("proof"), key, "agent", nonce, theirs, version)
        if kind != wire.HELLO or not known or not isinstance(theirs, str):
            raise BadFrame("the answer is not the agent's")
        if not isinstance(instance, str) or len(instance) != 32 or not _INSTANCE.issuperset(instance):
            raise BadFrame("the agent does not name itself")
        self.instance, self.version = instance, version
        return theirs

    async def call(
        self,
        op: str,
        fields: Mapping[str, object],
        data: bytes = b"",
        bound_s: float | None = STALLED_S,
        behind: Behind | None = None,
    ) -> Mapping[str, Any]:
        """Sends an operation with all its data and returns the result. Raises AgentRefused, ChannelLost.

        ``behind`` begins further exchanges, which the agent finds behind this one before it has answered.
        """
        exchange = self._new()
        try:
            frames = [_open(exchange.number, op, fields)]
            if len(data) <= wire.PIECE:  # what belongs together is written at once
                frames += exchange.whole(data)
            self.write(b"".join(frames))
            if len(data) > wire.PIECE:
                await exchange.send(data)
                exchange.end()
            if behind is not None:
                behind(self)
            return await exchange.result(bound_s)
        finally:
            exchange.give_up()

    def begin(self, op: str, **fields: object) -> Exchange:
        """Begins an operation. Raises ChannelLost."""
        exchange = self._new()
        self.write(_open(exchange.number, op, fields))
        return exchange

    @property
    def crowded(self) -> bool:
        """Returns whether exchanges should be begun only where they are needed."""
        return len(self._exchanges) >= wire.EXCHANGES // 2

    def accept(self, port: int, window: int) -> Exchange:
        """Begins to wait for a connection to the way out, which may send ``window`` bytes ahead. Raises ChannelLost."""
        exchange = self._new(window)
        self.write(_open(exchange.number, "accept", {"port": port, "window": window}))
        return exchange

    def _new(self, window: int = wire.WINDOW) -> Exchange:
        if self.lost:
            raise ChannelLost("the channel to the sandbox's agent is lost")
        self._last += 1
        exchange = self._exchanges[self._last] = Exchange(self, self._last, window)
        return exchange

    def write(self, frame: bytes) -> None:
        first, self._first = self._first, b""
        if not self.lost and (first or frame):
            self._writer.write(first + frame)

    async def drain(self) -> None:
        """Waits until the transport takes more. Raises ChannelLost."""
        try:
            async with asyncio.timeout(STALLED_S):
                await self._writer.drain()
        except (OSError, TimeoutError) as error:
            self._lose(f"it takes nothing: {error}")
            raise ChannelLost("the channel to the sandbox's agent is lost") from None

    def forget(self, number: int) -> None:
        if self._exchanges.pop(number, None) is not None:
            self._grace = min(self._grace + _GRACE, wire.EXCHANGES * _GRACE)
            self.write(wire.pack(wire.CANCEL, number))

    async def close(self) -> None:
        """Closes the channel. The sandbox lives on."""
        self._lose("it was closed")
        if self._reading is not None and self._reading is not asyncio.current_task():
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self, frames: list[tuple[int, int, bytes]]) -> None:
        why = "it ended"
        try:
            while not self.lost:
                for kind, number, payload in frames:
                    self._frame(kind, number, payload)
                frames.clear()  # they are not held while nothing comes
                if not (data := await self._reader.read(_READ)):
                    break
                frames = self._parser.feed(data)
        except BadFrame as error:
            why = f"the agent broke the protocol: {error}"
        except (OSError, EOFError, SandboxFault) as error:
            why = str(error)
        self._lose(why)

    def _frame(self, kind: int, number: int, payload: bytes) -> None:
        if self._expected is not None:
            (key, nonce, agreed), self._expected = self._expected, None
            if self._meet((kind, number, payload), key, nonce) != agreed:
                raise BadFrame("the agent has another nonce")
            return
        exchange = self._exchanges.get(number)
        if kind == wire.HELLO or number > self._last:
            raise BadFrame("what nobody asked for")
        if exchange is None:
            self._grace -= len(payload) + _FRAME_COST
            if self._grace < 0:
                raise BadFrame("more than there was credit for")
            return
        exchange.take(kind, payload)
        if exchange.over:
            del self._exchanges[number]

    def _lose(self, why: str) -> None:
        if not self.lost:
            self.lost = True
            self._writer.close()
            lost = ChannelLost(f"the channel to the sandbox's agent is lost: {why}"[:300])
            for exchange in self._exchanges.values():
                exchange.lose(lost)
            self._exchanges.clear()


def _open(number: int, op: str, fields: Mapping[str, object]) -> bytes:
    """Returns the frame that begins an exchange. Raises InvalidInput for words that are too long together."""
    order = _encode({"op": op, **fields})
    if len(order) > wire.TO_AGENT[wire.OPEN]:
        raise InvalidInput("args", f"words and variables have at most {wire.TO_AGENT[wire.OPEN]} bytes together")
    return wire.pack(wire.OPEN, number, order)


def _encode(value: object) -> bytes:
    return _TEXT(value).encode()


def _object(payload: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise BadFrame("not a JSON object")
    return value


def _refused(told: Mapping[str, Any]) -> AgentRefused:
    kind, text, first = told.get("kind"), told.get("text"), told.get("first", 0)
    if not isinstance(kind, str) or not isinstance(text, str) or type(first) is not int or not 0 <= first < 1 << 62:
        raise BadFrame("a refusal that says nothing")
    return AgentRefused(kind[:40], "".join(c if c.isprintable() else "?" for c in text[:300]), first)
