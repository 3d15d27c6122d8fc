"""One request and its answer, each read by a parser of its own.

Messages are written anew from their parsed form, so that no other parser can understand something else.
"""

from __future__ import annotations

import re

import h11

from skillyard.gate.http.content import ANY, Answer, ContentRules
from skillyard.gate.http.head import Fields, Heads, check_trailer, check_written, end_to_end, listed
from skillyard.gate.relay.guard import Outbox, Refused, Unreachable

MOST_EVENTS = 64
"""Parts of messages that are passed on before others have their turn."""
_INCOMPLETE = 1 << 16
_QUOTED = re.compile(r":? *(?:bytearray\()?b['\"].*", re.DOTALL)
"""The part of h11's error texts that repeats received bytes, which may be a secret."""


class ClientSide:
    """Reads a client's requests one at a time; bytes that it sends ahead of an answer stay here."""

    def __init__(self) -> None:
        self._heads = Heads(strict=True)
        self.next()

    def next(self) -> None:
        """Admits another exchange."""
        self.http = h11.Connection(h11.SERVER, _INCOMPLETE)

    @property
    def held(self) -> int:
        """Returns how many bytes wait for their turn."""
        return len(self._heads)

    @property
    def in_body(self) -> bool:
        return self.http.their_state is h11.SEND_BODY

    @property
    def may_go_on(self) -> bool:
        """Returns whether the connection outlives the exchange that is over."""
        return self.http.our_state is h11.DONE and self.http.their_state is h11.DONE

    def feed(self, data: bytes) -> None:
        if self.in_body:
            self.http.receive_data(data)
        else:
            self._heads.feed(data)

    def request(self) -> h11.Request | None:
        """Returns the next request, once its head is complete. Raises Refused."""
        if (head := self._heads.cut()) is None:
            return None
        check_written(head)
        try:
            self.http.receive_data(head)
            request = self.http.next_event()
        except h11.RemoteProtocolError as error:
            raise Refused(f"HTTP that is malformed: {error}"[:200]) from None
        assert isinstance(request, h11.Request)
        if self._heads:
            self.http.receive_data(self._heads.rest())
        return request

    def body(self) -> h11.Data | h11.EndOfMessage | None:
        """Returns the next part of the request's body, None until more is fed. Raises Refused."""
        if not self.in_body:
            return None
        try:
            event = self.http.next_event()
        except h11.RemoteProtocolError as error:
            raise Refused(f"HTTP with a malformed body: {error}"[:200]) from None
        if isinstance(event, h11.EndOfMessage):
            check_trailer(event.headers)
            # What follows is a head, which is judged as it is written before h11 may read it.
            if ahead := self.http.trailing_data[0]:
                self._heads.feed(ahead)
            return event
        return event if isinstance(event, h11.Data) else None

    def rest(self) -> bytes:
        """Returns the bytes after the last request, once.

        They are the first ones after a switch of protocols."""
        return self._heads.rest()


class Exchange(Outbox):
    """Passes on a request that was judged, and its answer.

    With ``hop``, the connections on both sides live on their own, and fields for one hop are not passed on.
    ``content`` judges the messages, from the request on: raises Refused."""

    def __init__(self, client: ClientSide, request: h11.Request, *, hop: bool, content: ContentRules = ANY) -> None:
        super().__init__()
        self._client = client
        self._hop = hop
        self._content = content
        self._server = h11.Connection(h11.CLIENT, _INCOMPLETE)
        self._heads = Heads(strict=False)
        self.busy = False
        """Whether :meth:`go_on` has yet to pass on received bytes."""
        self.answering = False
        """Whether the client was told some of the answer."""
        self.switched = False
        """Whether the connection is a WebSocket's from here on."""
        self._to_server += self._server.send(content.request(request)) or b""

    @property
    def answered(self) -> bool:
        """Returns whether the answer is complete; the request may not be."""
        return self._client.http.our_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)

    @property
    def complete(self) -> bool:
        """Returns whether both messages are complete."""
        return self.answered and not self._client.in_body

    @property
    def server_may_go_on(self) -> bool:
        """Returns whether the server's connection can have another exchange."""
        states = (self._server.our_state, self._server.their_state)
        return states == (h11.DONE, h11.DONE) and not self._server.trailing_data[0] and not self._heads

    @property
    def rest_unwanted(self) -> bool:
        """Returns whether the server has answered in full and ends before the request was complete."""
        return self._server.their_state in (h11.MUST_CLOSE, h11.CLOSED) and self._client.in_body

    def server_says(self, data: bytes) -> None:
        """Takes bytes of the server, none at its end; :meth:`go_on` is to follow."""
        if self._server.their_state is h11.SEND_BODY or not data:
            self._server.receive_data(data)
        else:
            self._heads.feed(data)

    def go_on(self) -> None:
        """Passes on the bytes of both sides.

        Raises Refused for the client's, Unreachable for the server's."""
        turns = MOST_EVENTS
        while turns and self._pass_request():
            turns -= 1
        while turns and self._pass_answer():
            turns -= 1
        self.busy = not turns

    @property
    def holding(self) -> bool:
        """Returns whether some of the answer waits for the rest, or for :meth:`pause`."""
        return self._content.holding and not self.answered

    def pause(self) -> None:
        """Takes that the server sends nothing more for now."""
        for part in self._content.paused():
            self._to_client += self._client.http.send(part) or b""

    def _pass_request(self) -> bool:
        event = self._client.body()
        if event is None:
            return False
        self._content.sent(event)
        self._to_server += self._server.send(event) or b""
        return not isinstance(event, h11.EndOfMessage)

    def _pass_answer(self) -> bool:
        try:
            event = self._answer()
        except (h11.RemoteProtocolError, Refused) as error:
            raise Unreachable(f"the server's answer is malformed: {_QUOTED.sub('', str(error))}") from None
        if event is None:
            return False
        for part in self._content.answered(event):
            if isinstance(part, h11.InformationalResponse):
                self._pass_interim(part)
            else:
                self.answering = True
                self._to_client += self._client.http.send(self._written(part)) or b""
        return not self.switched and not isinstance(event, h11.EndOfMessage)

    def _answer(self) -> Answer | None:
        """Returns the next part of the answer, None until more is fed."""
        if self._server.their_state in (h11.IDLE, h11.SEND_RESPONSE):
            if (head := self._heads.cut()) is None:
                return None
            self._server.receive_data(head)
        event = self._server.next_event()
        if isinstance(event, h11.Response) and self._heads:
            self._server.receive_data(self._heads.rest())
        return event if isinstance(event, Answer) else None

    def _pass_interim(self, event: h11.InformationalResponse) -> None:
        self.switched = event.status_code == 101
        fields: Fields = list(event.headers.raw_items())
        if self._hop and not self.switched:
            fields = end_to_end(event.headers)
        interim = h11.InformationalResponse(status_code=event.status_code, headers=fields, reason=event.reason)
        self._to_client += self._client.http.send(interim) or b""
        if self.switched:
            self.answering = True
            self._to_client += self._heads.rest()
            self._to_server += self._client.rest()

    def _written(self, event: h11.Event) -> h11.Event:
        if isinstance(event, h11.EndOfMessage) and self._client.http.their_http_version == b"1.0":
            return h11.EndOfMessage()  # no chunks, no trailer
        return self._written_head(event) if isinstance(event, h11.Response) else event

    def _written_head(self, answer: h11.Response) -> h11.Response:
        fields: Fields = end_to_end(answer.headers) if self._hop else list(answer.headers.raw_items())
        last = answer.http_version == b"1.0" and b"close" not in listed(answer.headers, b"connection")
        if last and not self._hop:
            fields.append((b"Connection", b"close"))
        return h11.Response(status_code=answer.status_code, headers=fields, reason=answer.reason)
