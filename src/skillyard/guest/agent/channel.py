"""A channel as the agent serves it: frames in, frames out, exchanges with credit."""

from __future__ import annotations

import os

from . import jsontext, wire
from .programs import Refused
from .wire import BadFrame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Mapping
    from typing import Any

    from .loop import Loop
else:
    from _collections import deque

_READ = 256 * 1024
_HIGH = 1 << 20
"""Bytes that wait to be written before the sources of data are told to stop."""
HELLO_S = 30.0
"""A channel that has not said hello after this time is closed."""


class Exchange:
    """One exchange; the base of all operations. ``credit`` is what may be sent, ``open`` whether it goes on."""

    def __init__(self, channel: Channel, number: int) -> None:
        self.channel, self.number = channel, number
        self.credit = wire.WINDOW
        self.allowed = wire.WINDOW
        self.open = True

    def data(self, data: bytes) -> None:
        """The host sent bytes; they count against its credit until :meth:`grant`."""
        self.grant(len(data))

    def ended(self) -> None:
        """The host has no more data."""

    def pump(self) -> None:
        """There may be credit and room for data: send what there is."""

    def closed(self) -> None:
        """The host gave up, the channel is lost, or the result was sent."""

    @property
    def room(self) -> int:
        """How many bytes may be sent now."""
        return 0 if self.channel.congested or not self.open else min(self.credit, wire.PIECE)

    def send(self, data: bytes) -> None:
        self.credit -= len(data)
        self.channel.send(wire.pack(wire.DATA, self.number, data))

    def finish_data(self) -> None:
        self.channel.send(wire.pack(wire.END, self.number))

    def grant(self, size: int) -> None:
        if self.open and size:
            self.allowed += size
            self.channel.send(wire.credit(self.number, size))

    def reply(self, value: Mapping[str, Any]) -> None:
        self._over(wire.REPLY, value)

    def fail(self, refused: Refused) -> None:
        self._over(wire.FAIL, {"kind": refused.kind, "text": refused.text[:1000], **refused.more})

    def _over(self, kind: int, value: Mapping[str, Any]) -> None:
        if self.open:
            self.channel.send(wire.pack(kind, self.number, jsontext.encode(value)))
            self.channel.forget(self)


class Channel:
    """Frames over the descriptor that is read from and that which is written to.

    ``take_nonce`` gives our nonce. ``begin`` makes the exchange of an operation, or raises Refused. ``greeted`` is
    called when a greeting was answered, and ``met`` when the host has proved itself.
    """

    def __init__(
        self,
        loop: Loop,
        fds: tuple[int, int],
        key: bytes,
        instance: str,
        take_nonce: Callable[[], str],
        begin: Callable[[Channel, int, Mapping[str, Any]], Exchange],
        greeted: Callable[[], None],
        met: Callable[[], None],
        lost: Callable[[Channel], None],
    ) -> None:
        self._loop, self._key, self._instance = loop, key, instance
        self._fd, self._into = fds
        self._take_nonce, self._begin, self._greeted, self._met, self._lost = take_nonce, begin, greeted, met, lost
        self._parser = wire.Parser(wire.TO_AGENT)
        self._out: deque[memoryview] = deque()
        self._waiting = 0
        self._stopped = False
        self._exchanges: dict[int, Exchange] = {}
        self._last = 0
        self._nonces: tuple[str, str] | None = None
        self._version = 0
        self.known = False
        self.peer = 0
        self.dirty = False
        for fd in fds:
            os.set_blocking(fd, False)
        loop.watch(self._fd, self._readable)
        self._patience = loop.after(HELLO_S, lambda: None if self.known else self.close())

    @property
    def congested(self) -> bool:
        return self._waiting > _HIGH

    def send(self, frame: bytes) -> None:
        """Queues a frame; the frames of one round are written together."""
        if self._fd >= 0:
            self._out.append(memoryview(frame))
            self._waiting += len(frame)
            self._stopped = self._stopped or self.congested
            self.dirty = True

    def forget(self, exchange: Exchange) -> None:
        if exchange.open:
            exchange.open = False
            self._exchanges.pop(exchange.number, None)
            exchange.closed()

    def close(self) -> None:
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        self._loop.close(fd)
        if self._into != fd:
            self._loop.close(self._into)
        self._patience.cancel()
        for exchange in tuple(self._exchanges.values()):
            self.forget(exchange)
        self._out.clear()
        self._lost(self)

    def flush(self) -> None:
        """Writes as much as the other side takes."""
        self.dirty = False
        try:
            while self._out:
                batch = [self._out[at] for at in range(min(len(self._out), 64))]
                written = os.writev(self._into, batch)
                self._waiting -= written
                while self._out and written >= len(self._out[0]):
                    written -= len(self._out.popleft())
                if written:
                    self._out[0] = self._out[0][written:]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        if self._fd < 0:
            return
        more = self.flush if self._out else None
        if self._into == self._fd:
            self._loop.watch(self._fd, self._readable, more)
        else:
            self._loop.watch(self._into, None, more)
        if self._stopped and not self.congested:
            self._stopped = False
            for exchange in tuple(self._exchanges.values()):
                exchange.pump()

    def _readable(self) -> None:
        try:
            data = os.read(self._fd, _READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        try:
            for kind, number, payload in self._parser.feed(data):
                self._frame(kind, number, payload)
                if self._fd < 0:
                    return
        except BadFrame:
            self.flush()
            self.close()

    def _frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind == wire.HELLO:
            self._hello(_object(payload))
        elif not self.known:
            raise BadFrame("no hello yet")
        elif kind == wire.OPEN:
            self._open(number, _object(payload))
        elif number > self._last:
            raise BadFrame("an exchange that was not begun")
        elif (exchange := self._exchanges.get(number)) is not None:
            self._of(exchange, kind, payload)

    def _of(self, exchange: Exchange, kind: int, payload: bytes) -> None:
        try:
            if kind == wire.DATA:
                exchange.allowed -= len(payload)
                if exchange.allowed < 0:
                    raise BadFrame("more data than credit")
                exchange.data(payload)
            elif kind == wire.END:
                exchange.ended()
            elif kind == wire.CREDIT:
                exchange.credit = min(exchange.credit + wire.credit_of(payload), wire.MOST_CREDIT)
                exchange.pump()
            else:
                self.forget(exchange)
        except Refused as refused:
            exchange.fail(refused)

    def _open(self, number: int, order: Mapping[str, Any]) -> None:
        if number <= self._last:
            raise BadFrame("a number that was used before")
        self._last = number
        exchange = Exchange(self, number)
        try:
            if len(self._exchanges) >= wire.EXCHANGES:
                raise Refused("busy", f"{wire.EXCHANGES} exchanges are open on this channel")
            self._exchanges[number] = exchange
            exchange = self._begin(self, number, order)
            if exchange.open:
                self._exchanges[number] = exchange
                exchange.pump()
        except Refused as refused:
            exchange.fail(refused)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            exchange.fail(Refused("invalid", f"{type(error).__name__}: {error}"))

    def _hello(self, said: Mapping[str, Any]) -> None:
        if self._nonces is None:
            offered, theirs = said.get("versions"), said.get("nonce")
            if not isinstance(offered, list) or not isinstance(theirs, str):
                raise BadFrame("a hello has versions and a nonce")
            common = [version for version in wire.VERSIONS if version in offered]
            if not common:
                self._say({"versions": list(wire.VERSIONS)})
                raise BadFrame("no version in common")
            self._nonces = theirs, self._take_nonce()
            self._version = max(common)
            proof = wire.prove(self._key, "agent", *self._nonces, self._version)
            nonce = self._nonces[1]
            self._say({"version": self._version, "instance": self._instance, "nonce": nonce, "proof": proof})
            self.flush()
            self._greeted()
        elif self.known or not wire.is_proof(said.get("proof"), self._key, "host", *self._nonces, self._version):
            raise BadFrame("the proof is wrong")
        else:
            self.known = True
            self._patience.cancel()
            self._met()

    def _say(self, value: Mapping[str, Any]) -> None:
        self.send(wire.pack(wire.HELLO, 0, jsontext.encode(value)))


def _object(payload: bytes) -> Mapping[str, Any]:
    try:
        value = jsontext.decode(payload)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise BadFrame("not a JSON object")
    return value
