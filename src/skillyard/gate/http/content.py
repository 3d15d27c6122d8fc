"""Rules for the content of HTTP messages.

Placeholders go nowhere unreplaced, and values come back to nobody. The rules do no input or output. One object serves
one connection, one exchange after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import h11

from skillyard.domain.network.session import GateSecret
from skillyard.gate.http.mask import Masker, Masks
from skillyard.gate.http.placeholder import Headers, Placeholders, Scanner, in_body
from skillyard.gate.relay.guard import Refused, Unreachable

MOST_HELD = 1 << 16
"""Bytes that are held of an answer with an announced length, so that a new length can be announced."""

_PLAIN = frozenset({b"", b"identity"})
Part = h11.Data | h11.EndOfMessage
Answer = h11.InformationalResponse | h11.Response | h11.Data | h11.EndOfMessage


class ContentRules(Protocol):
    """Judges and changes the messages of one connection."""

    def request(self, request: h11.Request) -> h11.Request:
        """Returns the request to send. Raises Refused."""
        ...

    def sent(self, part: Part) -> None:
        """Takes a part of the request's body. Raises Refused."""
        ...

    def answered(self, part: Answer) -> list[Answer]:
        """Returns the parts to pass on for a part of the answer. Raises Unreachable."""
        ...

    @property
    def holding(self) -> bool:
        """Returns whether :meth:`paused` may have something."""
        ...

    def paused(self) -> list[Answer]:
        """Returns the parts to pass on because the answer pauses."""
        ...


class _Still:
    """Never holds an answer back."""

    holding = False

    def paused(self) -> list[Answer]:
        return []


class _Any(_Still):
    def request(self, request: h11.Request) -> h11.Request:
        return request

    def sent(self, part: Part) -> None:
        """Allows everything."""

    def answered(self, part: Answer) -> list[Answer]:
        return [part]


ANY: ContentRules = _Any()
"""Rules that allow everything."""


class PlainContent(_Still):
    """Refuses placeholders on a connection in plain text."""

    def __init__(self, placeholders: Placeholders) -> None:
        self._placeholders = placeholders
        self._scanner = placeholders.scanner()

    def request(self, request: h11.Request) -> h11.Request:
        self._placeholders.check(_line(request), request.headers.raw_items())
        self._scanner = self._placeholders.scanner()
        return request

    def sent(self, part: Part) -> None:
        if isinstance(part, h11.Data):
            check_body(self._scanner, part.data)
        else:
            self._placeholders.check(b"", part.headers.raw_items())

    def answered(self, part: Answer) -> list[Answer]:
        return [part]


class SecretContent:
    """Replaces placeholders in header fields to a bound host, and masks values in its answers.

    ``bound`` are the secrets of the host. ``used`` is called with the name of each secret that is put in; ``sent``
    has the names of those that were, on any connection of the session."""

    def __init__(
        self,
        placeholders: Placeholders,
        bound: tuple[GateSecret, ...],
        masks: Masks,
        used: Callable[[str], None],
        sent: set[str],
    ) -> None:
        self._placeholders = placeholders
        self._bound = bound
        self._masks = masks
        self._used = used
        self._values_sent = sent
        self._scanner: Scanner = placeholders.scanner()
        self._bodiless = False
        self._masker = Masker(masks)
        self._head: h11.Response | None = None
        self._held = bytearray()

    def request(self, request: h11.Request) -> h11.Request:
        fields, used = self._placeholders.substitute(_line(request), request.headers.raw_items(), self._bound)
        for name in used:
            self._values_sent.add(name)
            self._used(name)
        self._scanner = self._placeholders.scanner()
        self._bodiless = request.method == b"HEAD"
        try:
            return h11.Request(method=request.method, target=request.target, headers=_searchable(fields))
        except h11.LocalProtocolError:  # its text has the value
            raise Refused("a secret has characters that no header field can carry") from None

    def sent(self, part: Part) -> None:
        if isinstance(part, h11.Data):
            check_body(self._scanner, part.data)
        elif (name := next(filter(None, (self._placeholders.find(v) for _, v in part.headers)), None)) is not None:
            raise in_body(name)

    def answered(self, part: Answer) -> list[Answer]:
        if isinstance(part, h11.Response):
            return self._begin(part)
        if isinstance(part, h11.Data):
            return self._go_on(bytes(part.data))
        if isinstance(part, h11.EndOfMessage):
            return self._end(part)
        reason = self._masks.once(part.reason)
        return [h11.InformationalResponse(status_code=part.status_code, headers=self._fields(part), reason=reason)]

    @property
    def holding(self) -> bool:
        return self._head is None and self._masker.holding

    def paused(self) -> list[Answer]:
        return [h11.Data(data=shown)] if (shown := self._masker.pause()) else []

    def _begin(self, answer: h11.Response) -> list[Answer]:
        length = _length(answer)
        bodiless = self._bodiless or answer.status_code in (204, 304)
        if not bodiless and self._values_sent and not _codings(answer) <= _PLAIN:
            raise Unreachable(
                "the server's answer is compressed although that was not asked for, and cannot be searched for secrets"
            )
        masked = _with_fields(answer, self._fields(answer), self._masks.once(answer.reason))
        self._masker = Masker(self._masks, fit=length is not None and length > MOST_HELD)
        self._held.clear()
        self._head = masked if length is not None and length <= MOST_HELD and not bodiless else None
        return [] if self._head else [masked]

    def _go_on(self, data: bytes) -> list[Answer]:
        shown = self._masker.feed(data)
        if self._head is not None:
            self._held += shown
            return []
        return [h11.Data(data=shown)] if shown else []

    def _end(self, end: h11.EndOfMessage) -> list[Answer]:
        rest = self._masker.flush()
        out: list[Answer] = []
        if self._head is not None:
            rest = bytes(self._held) + rest
            fields = [(n, v) for n, v in self._head.headers.raw_items() if n.lower() != b"content-length"]
            fields.append((b"Content-Length", b"%d" % len(rest)))
            out.append(_with_fields(self._head, fields, self._head.reason))
        if rest:
            out.append(h11.Data(data=rest))
        self._head = None
        return [*out, h11.EndOfMessage(headers=self._fields(end))]

    def _fields(self, part: h11.InformationalResponse | h11.Response | h11.EndOfMessage) -> Headers:
        return [(self._masks.once(name), self._masks.once(value)) for name, value in part.headers.raw_items()]


def _with_fields(answer: h11.Response, fields: Headers, reason: bytes) -> h11.Response:
    return h11.Response(status_code=answer.status_code, headers=fields, reason=reason, http_version=answer.http_version)


def check_body(scanner: Scanner, data: bytes | bytearray) -> None:
    """Raises Refused for a placeholder in a body."""
    if (name := scanner.feed(bytes(data))) is not None:
        raise in_body(name)


def _line(request: h11.Request) -> bytes:
    return request.method + b" " + request.target


def _searchable(fields: Headers) -> Headers:
    """Asks for an answer without compression of bodies or messages.

    See RFC 9110 §12.5.3 and RFC 7692."""
    gone = (b"accept-encoding", b"sec-websocket-extensions")
    return [*((n, v) for n, v in fields if n.lower() not in gone), (b"Accept-Encoding", b"identity")]


def _codings(answer: h11.Response) -> set[bytes]:
    return {
        coding.strip().lower()
        for name, value in answer.headers
        if name == b"content-encoding"
        for coding in value.split(b",")
    }


def _length(answer: h11.Response) -> int | None:
    """Returns the announced length of the body, if there is one (RFC 9112 §6.3)."""
    fields = dict(answer.headers)
    if b"transfer-encoding" in fields or b"content-length" not in fields:
        return None
    return int(fields[b"content-length"])
