"""One request to a service and its answer, passed on piece by piece. Everything that comes back is hostile.

The answer is written anew from its parts. A connection into the sandbox serves one request at a time, and another one
only when the end of both is beyond doubt.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable

import h11
from starlette.types import Message, Receive, Send

from skillyard.domain.errors import SandboxGone, SkillyardError
from skillyard.engine.services.access import NotListening
from skillyard.engine.services.idle import Connection
from skillyard.faces.http.errors import HttpRefusal, PayloadTooLarge, Unavailable
from skillyard.faces.http.replies import BrokenResponse, end, piece
from skillyard.faces.http.services.fields import BadAnswer, Fields, listed
from skillyard.faces.rpc.wire import CallerGone
from skillyard.values import dataclass

MOST_HEAD = 64 * 1024
MOST_FIELDS = 128
MOST_INTERIM = 8
MOST_EVENTS = 100
"""Parts of an answer that are read before others get their turn."""
MOST_READ = 256 * 1024
_LARGE = 16 * 1024
"""Parts of an answer that are not gathered with others."""
_BODY_FRAMING = (b"content-length", b"transfer-encoding")
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MOST_STATUS = 599
_TOUCH_S = 1.0


class SlowAnswer(HttpRefusal):
    type = "GatewayTimeout"
    status = 504


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds until an answer begins, seconds without any byte, and bytes of a request's body."""

    answer_s: float
    idle_s: float
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Switched:
    """A service took the caller's offer of a websocket. ``first`` are its bytes behind the head."""

    fields: Fields
    first: bytes


class Exchange:
    """Passes on ``request``. ``written`` gives the fields of an answer as the caller sees them."""

    def __init__(
        self, connection: Connection, request: h11.Request, written: Callable[[Fields], Fields], bounds: Bounds
    ) -> None:
        self._connection = connection
        self._request = request
        self._written = written
        self._bounds = bounds
        self._http = h11.Connection(h11.CLIENT, MOST_HEAD)
        self._loop = asyncio.get_running_loop()
        self._begun = self._heard = False
        self._interim = 0
        self._touched = 0.0
        self._deadline: asyncio.Timeout | None = None
        self._gone: HttpRefusal | CallerGone | None = None

    async def run(self, receive: Receive, send: Send) -> Switched | None:
        """Returns when the answer was sent in full, or the service agreed to a websocket.

        Raises BadAnswer, SlowAnswer, PayloadTooLarge and Unavailable before the answer began, BrokenResponse later,
        CallerGone.
        """
        problem: SkillyardError | CallerGone
        try:
            async with asyncio.timeout(self._bounds.answer_s) as self._deadline:
                return await self._both(receive, send)
        except TimeoutError:
            problem = self._gone or SlowAnswer("the service does not answer in time")
        except (h11.RemoteProtocolError, SandboxGone):
            problem = BadAnswer("the service's answer is not HTTP/1.1, is too large, or breaks off")
        except NotListening as error:
            problem = Unavailable(error.message, error.retry_after_ms)
        except HttpRefusal as refusal:
            problem = refusal
        raise self.broken(problem)

    def broken(self, problem: SkillyardError | CallerGone) -> Exception:
        """Returns the error for an answer that cannot go on: ``problem`` itself while the answer has not begun."""
        if self._begun and not isinstance(problem, CallerGone):
            return BrokenResponse(problem.message)
        return problem

    async def _both(self, receive: Receive, send: Send) -> Switched | None:
        await self._ask()
        sending = asyncio.create_task(self._send_body(receive))
        sending.add_done_callback(self._stop)
        try:
            return await self._answer(send)
        finally:
            sending.remove_done_callback(self._stop)
            sending.cancel()
            await asyncio.wait((sending,))

    async def _ask(self) -> None:
        try:
            await self._send_head()
        except SandboxGone:
            if not self._connection.used:
                raise
            await self._ask_anew()

    async def _ask_anew(self) -> None:
        """Sends the request once more: the service ended a kept connection before it read it."""
        await self._connection.renew()
        self._http = h11.Connection(h11.CLIENT, MOST_HEAD)
        await self._send_head()

    async def _send_head(self) -> None:
        head = self._http.send(self._request) or b""
        if not any(name in _BODY_FRAMING for name, _ in self._request.headers):
            self._http.send(h11.EndOfMessage())
        await self._connection.stream.write(head)

    def _stop(self, sending: asyncio.Task[HttpRefusal | CallerGone]) -> None:
        """Ends the wait for the answer."""
        if not sending.cancelled() and self._deadline is not None:
            self._gone = sending.result()
            self._deadline.reschedule(self._loop.time())

    async def _send_body(self, receive: Receive) -> HttpRefusal | CallerGone:
        """Passes the body on, and returns why no answer is wanted any more."""
        wanted, count = True, 0
        while (message := await receive())["type"] != "http.disconnect":
            count += len(message.get("body", b""))
            if count > self._bounds.body_bytes:
                return PayloadTooLarge(self._bounds.body_bytes)
            try:
                if wanted:
                    await self._send_piece(message)
            except (SandboxGone, h11.LocalProtocolError):  # it answers without the rest
                wanted = False
        return CallerGone("the client went away")

    async def _send_piece(self, message: Message) -> None:
        if data := message.get("body", b""):
            await self._connection.stream.write(self._http.send(h11.Data(data=data)) or b"")
            self._touch()
        if not message.get("more_body", False) and self._http.our_state is h11.SEND_BODY:
            await self._connection.stream.write(self._http.send(h11.EndOfMessage()) or b"")

    async def _answer(self, send: Send) -> Switched | None:
        while True:
            match event := self._http.next_event():
                case h11.NEED_DATA:
                    await self._hear()
                case h11.Response():
                    await self._begin(event, send)
                    await self._pass_body(event, send)
                    return None
                case h11.InformationalResponse(status_code=101):
                    return self._switched(event)
                case h11.InformationalResponse() if self._interim < MOST_INTERIM:
                    self._interim += 1
                case h11.InformationalResponse():
                    raise BadAnswer("the service sends too many interim answers")
                case _:
                    raise BadAnswer("the service ended the connection without an answer")

    async def _hear(self) -> None:
        data = await self._connection.stream.read(MOST_READ)
        if not data and self._connection.used and not self._heard:
            await self._ask_anew()
            return
        self._heard = True
        self._http.receive_data(data)  # and no later deadline: a head that drips would hold the connection for days

    async def _pass_body(self, answer: h11.Response, send: Send) -> None:
        """Passes the answer's body on, and keeps the connection when its end is beyond doubt."""
        said = answer.headers
        framing = [name for name, _ in said if name in _BODY_FRAMING]
        bare = self._request.method == b"HEAD" or answer.status_code in (204, 304)
        if framing == [b"content-length"] and not bare:
            whole = await self._pass_counted(int(dict(said)[b"content-length"]), send)
        else:
            await self._pass_parsed(send)
            whole = self._http.their_state is h11.DONE and not self._http.trailing_data[0] and len(framing) <= 1
        ends = answer.http_version != b"1.1" or b"close" in listed(v for n, v in said if n == b"connection")
        if whole and not ends and self._http.our_state is h11.DONE:
            self._connection.keep()

    async def _pass_counted(self, left: int, send: Send) -> bool:
        """Passes so many bytes on, without a parser between. Returns whether no more came than that."""
        data, _ = self._http.trailing_data
        more = len(data) > left
        data = data[:left]
        while len(data) < left:
            if data:
                await piece(send, data)
            left -= len(data)
            data = await self._connection.stream.read(min(left, MOST_READ))
            if not data:
                raise BadAnswer("the service's answer breaks off")
            self._touch()
        await send({"type": "http.response.body", "body": data})
        return not more

    async def _pass_parsed(self, send: Send) -> None:
        """Passes on a body whose end a parser has to find."""
        events = 0
        gathered = bytearray()
        while True:
            events += 1
            if not events % MOST_EVENTS:  # tiny chunks cost much more than they carry: others get their turns
                await asyncio.sleep(0)
            event = self._http.next_event()
            if isinstance(event, h11.Data) and len(event.data) < _LARGE:
                gathered += event.data
                continue
            if gathered:
                await piece(send, bytes(gathered))
                gathered.clear()
            if isinstance(event, h11.Data):
                await piece(send, event.data)
                continue
            if isinstance(event, h11.EndOfMessage):
                await end(send)
                return
            if event is not h11.NEED_DATA:
                raise BadAnswer("the service's answer breaks off")
            self._http.receive_data(await self._connection.stream.read(MOST_READ))
            self._touch()

    async def _begin(self, answer: h11.Response, send: Send) -> None:
        if answer.status_code > _MOST_STATUS:
            raise BadAnswer("the service's answer has a status that HTTP does not know (RFC 9110 §15)")
        raw = list(answer.headers.raw_items())
        if len(raw) > MOST_FIELDS:
            raise BadAnswer(f"the service's answer has more than {MOST_FIELDS} header fields")
        fields = self._written(raw)
        if any(name == b"transfer-encoding" for name, _ in answer.headers):  # its length is not what it says
            fields = [(name, value) for name, value in fields if name != b"content-length"]
        self._begun = True
        self._connection.answered()
        self._touched = 0.0
        await send({"type": "http.response.start", "status": answer.status_code, "headers": fields})
        self._touch()

    def _switched(self, answer: h11.InformationalResponse) -> Switched:
        fields = list(answer.headers)
        accepts = [value for name, value in fields if name == b"sec-websocket-accept"]
        offered = {name: value for name, value in self._request.headers if name.startswith(b"sec-websocket-")}
        chosen = [value for name, value in fields if name == b"sec-websocket-protocol"]
        known = listed([offered.get(b"sec-websocket-protocol", b"")])
        agrees = (
            accepts == [accept_of(offered.get(b"sec-websocket-key", b""))]
            and listed(value for name, value in fields if name == b"upgrade") == {b"websocket"}
            and len(chosen) <= 1
            and listed(chosen) <= known
        )
        if not agrees:
            raise BadAnswer("the service's answer to a websocket does not fit the question")
        passed = [(b"sec-websocket-protocol", value) for value in chosen]
        if b"sec-websocket-extensions" in offered:
            passed += [(name, value) for name, value in fields if name == b"sec-websocket-extensions"]
        passed.append((b"sec-websocket-accept", accepts[0]))
        return Switched([(b"upgrade", b"websocket"), (b"connection", b"Upgrade"), *passed], self._http.trailing_data[0])

    def _touch(self) -> None:
        """Something passed: waits from here on. Reading the clock each second is enough."""
        now = self._loop.time()
        if now - self._touched > _TOUCH_S and self._deadline is not None:
            self._touched = now
            self._deadline.reschedule(now + (self._bounds.idle_s if self._begun else self._bounds.answer_s))


def accept_of(key: bytes) -> bytes:
    """Returns the proof that a websocket's question was read (RFC 6455 §4.2.2)."""
    return base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest())
