"""Finds placeholders in requests and replaces them in header fields to the bound hosts."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import unquote_to_bytes

from skillyard.domain.network.session import GateSecret
from skillyard.gate.relay.guard import Refused

Headers = list[tuple[bytes, bytes]]

MOST_SUBSTITUTED = 256 * 1024
"""Bytes of all values of one request's header fields."""

_BASIC = re.compile(rb"(?i)(basic[ \t]+)([A-Za-z0-9+/=]+)[ \t]*")
_UNFIT = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_NO_CREDENTIAL = re.compile(
    rb"(?i)host|connection|keep-alive|upgrade|te|trailer|transfer-encoding|expect|range|user-agent|referer|origin|from|"
    rb"via|forwarded|date|max-forwards|proxy-.*|x-forwarded-.*|accept.*|content-.*|if-.*|sec-fetch-.*|"
    rb"sec-websocket-(?!protocol).*"
)
"""Fields that carry no credential; servers frame by them, log them or repeat them."""
_READING = (b"GET", b"HEAD")
_METHODS = re.compile(rb"(?i)x-(?:http-)?method(?:-override)?")
"""Fields by which servers take a request for one with another method."""


class Placeholders:
    """The placeholders of one session's ``secrets``. Holds real values until :meth:`forget`."""

    def __init__(self, secrets: Sequence[GateSecret]) -> None:
        self._secrets = tuple(secrets)
        self._forms = [(form, s.name) for s in secrets for form in encoded_forms(s.placeholder.encode())]
        self._longest = max((len(form) for form, _ in self._forms), default=1)

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def forget(self) -> None:
        self._secrets = ()
        self._forms = []

    def bound(self, name: str, port: int) -> tuple[GateSecret, ...]:
        """Returns the secrets whose values ``name`` may have at ``port``."""
        return tuple(s for s in self._secrets if any(rule.has_name(name) and rule.has_port(port) for rule in s.hosts))

    def find(self, data: bytes) -> str | None:
        """Returns the name of a secret whose placeholder is in ``data``.

        It is found raw, in base64 and percent-encoded."""
        return self._find(data) or (self._find(unquote_to_bytes(data)) if b"%" in data else None)

    def scanner(self) -> Scanner:
        """Returns a scanner for a body that comes in pieces."""
        return Scanner(self)

    def check(self, line: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raises Refused for a placeholder in a request's head with the first line ``line``."""
        if (name := self.find(line)) is not None:
            raise in_url(name)
        for field, value in headers:
            if (name := self.find(value) or self.find(field.lower())) is not None:
                raise Refused(
                    f"the placeholder of secret '{name}' is sent in plain text: secrets are put into requests over TLS "
                    "to the bound hosts only"
                )

    def substitute(self, line: bytes, headers: Headers, bound: Sequence[GateSecret]) -> tuple[Headers, set[str]]:
        """Returns the header fields with ``bound`` values put in, and the names of those put in.

        Raises Refused for a placeholder that stands elsewhere or belongs to another host."""
        if (name := self.find(line)) is not None:
            raise in_url(name)
        used: set[str] = set()
        substituted = [(field, self._value(field, value, bound, used)) for field, value in headers]
        if any(secret.reading and secret.name in used for secret in bound):
            _check_reading(line, headers, used)
        if sum(len(value) for _, value in substituted) > MOST_SUBSTITUTED:
            raise Refused(f"the header fields have more than {MOST_SUBSTITUTED} bytes with the secrets in them")
        return substituted, used

    def _value(self, field: bytes, value: bytes, bound: Sequence[GateSecret], used: set[str]) -> bytes:
        basic = _BASIC.fullmatch(value) if field.lower() == b"authorization" else None
        plain = _decoded(basic[2]) if basic is not None else None
        if basic is not None and plain is not None:
            replaced = _replaced(plain, bound, used)
            self._check_rest(field, replaced)
            return value if replaced == plain else basic[1] + base64.b64encode(replaced)
        replaced = _replaced(value, bound, used)
        self._check_rest(field, replaced)
        if replaced != value:
            _check_fit(field, replaced, used)
        return replaced

    def _check_rest(self, field: bytes, value: bytes) -> None:
        """Refuses placeholders that were not replaced.

        They belong to other hosts or have a form that cannot be replaced."""
        if (name := self.find(value) or self.find(field.lower())) is not None:
            raise Refused(
                f"the placeholder of secret '{name}' is in a header field of a host that it is not bound to, or in an "
                "encoding other than that of 'Authorization: Basic'"
            )

    def _find(self, data: bytes) -> str | None:
        return next((name for form, name in self._forms if form in data), None)


class Scanner:
    """Searches a body for placeholders piece by piece."""

    def __init__(self, placeholders: Placeholders) -> None:
        self._placeholders = placeholders
        self._tail = b""

    def feed(self, data: bytes) -> str | None:
        """Returns the name of a secret whose placeholder ends in ``data``."""
        window = self._tail + data
        self._tail = window[-(self._placeholders._longest - 1) :]
        return self._placeholders._find(window)


def encoded_forms(raw: bytes) -> Iterator[bytes]:
    """Yields ``raw`` and the base64 characters that depend on it alone.

    They are those of both alphabets (RFC 4648 §4, §5) at each of the three alignments."""
    yield raw
    seen: set[bytes] = set()
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw)
        inner = encoded[(shift * 8 + 5) // 6 : (shift + len(raw)) * 8 // 6]
        seen |= {inner, inner.translate(bytes.maketrans(b"+/", b"-_"))}
    yield from sorted(seen)


def in_url(name: str) -> Refused:
    return Refused(f"the placeholder of secret '{name}' is in the URL: secrets are put into header fields only")


def in_body(name: str) -> Refused:
    return Refused(f"the placeholder of secret '{name}' is in the body: secrets are put into header fields only")


def _replaced(value: bytes, bound: Sequence[GateSecret], used: set[str]) -> bytes:
    for secret in bound:
        if (placeholder := secret.placeholder.encode()) in value:
            value = value.replace(placeholder, secret.value.rstrip("\r\n").encode())
            used.add(secret.name)
    return value


def _check_reading(line: bytes, headers: Headers, used: set[str]) -> None:
    method = line.partition(b" ")[0]
    has_body = any(
        field.lower() == b"transfer-encoding" or (field.lower() == b"content-length" and value.strip() != b"0")
        for field, value in headers
    )
    if method not in _READING or has_body or any(_METHODS.fullmatch(field) for field, _ in headers):
        names = ", ".join(sorted(used))
        raise Refused(
            f"the placeholder of secret '{names}' is in a request that may change something at the host: this secret "
            "is put into GET and HEAD requests without a body alone"
        )


def _check_fit(field: bytes, value: bytes, used: set[str]) -> None:
    names = ", ".join(sorted(used))
    if _NO_CREDENTIAL.fullmatch(field):
        shown = field.decode("latin-1")
        raise Refused(
            f"the placeholder of secret '{names}' is in the header field {shown}, which carries no credential"
        )
    if _UNFIT.search(value) or value.strip(b" \t") != value:
        raise Refused(f"secret '{names}' has characters that no header field can carry")


def _decoded(text: bytes) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
