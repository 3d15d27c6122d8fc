"""The header fields that pass between a caller and a service, judged on both ways.

Into the sandbox goes nothing that is ours: no credentials, no names of proxies before us. Out of it comes nothing that
speaks for more than the one host or path it was asked by.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urljoin, urlsplit

from skillyard.engine.services.names import TICKET
from skillyard.faces.http.errors import HttpRefusal
from skillyard.values import dataclass

Fields = list[tuple[bytes, bytes]]

_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade", b"expect",
})  # fmt: skip
"""Fields for the next hop alone (RFC 9110 §7.6.1)."""
_FRAMING = frozenset({b"host", b"content-length", *_HOP})
_OURS = frozenset({b"authorization", b"forwarded", b"via", b"x-real-ip"})
_STEERS_PROXIES = re.compile(
    rb"x-(?:accel|sendfile|lighttpd|reproxy)(?:-.*)?|(?:surrogate|cdn-cache)-control|edge-control"
)
"""Fields by which an answer tells a proxy before us to send something else, or to keep it."""
_SPEAKS_FOR_MORE = frozenset({
    b"alt-svc", b"clear-site-data", b"expect-ct", b"nel", b"public-key-pins", b"report-to", b"reporting-endpoints",
    b"strict-transport-security", b"date",
})  # fmt: skip
"""Fields that hold for a whole site or a connection."""
_NOT_BY_PATH = frozenset({
    b"content-location", b"content-security-policy", b"content-security-policy-report-only", b"link", b"refresh",
    b"service-worker-allowed", b"set-cookie", b"set-cookie2", b"www-authenticate", b"cross-origin-resource-policy",
    b"referrer-policy", b"x-content-type-options", b"cache-control", b"pragma", b"expires", b"location",
    b"permissions-policy", b"document-policy", b"origin-agent-cluster", b"origin-trial",
})  # fmt: skip
"""Fields that would speak for our own host: every service and ``/rpc`` share it there."""
_REWRITTEN_BY_HOST = frozenset({b"set-cookie", b"set-cookie2", b"cross-origin-resource-policy", b"cache-control"})
_HARMLESS_PARTS = re.compile(rb"multipart/(?:byteranges|form-data)\s*(?:;[^,]*)?", re.DOTALL)
"""The kinds in parts that no browser takes apart by itself."""
SANDBOXED = (b"content-security-policy", b"sandbox")
_SHARED = (b"public", b"s-maxage", b"private")


class BadAnswer(HttpRefusal):
    """The service's answer misleads, is not HTTP/1.1 within the bounds, or ended early."""

    type = "BadGateway"
    status = 502


def listed(values: Iterable[bytes]) -> frozenset[bytes]:
    """Returns the lower-case elements of a field that is a list."""
    return frozenset(filter(None, (part.strip().lower() for value in values for part in value.split(b","))))


def end_to_end(fields: Iterable[tuple[bytes, bytes]]) -> Fields:
    """Returns the fields that are not for the next hop alone, with lower-case names."""
    low = [(name.lower(), value) for name, value in fields]
    gone = _HOP | listed(value for name, value in low if name == b"connection")
    return [(name, value) for name, value in low if name not in gone]


@dataclass(frozen=True, slots=True)
class ByPath:
    """The rules for ``/services/<task>/<port>``, below which all services share our host."""

    prefix: str
    port: int

    def request(self, fields: Iterable[tuple[bytes, bytes]]) -> Fields:
        gone = _FRAMING | _OURS | {b"cookie", b"origin", b"referer"}
        passed = [(name, value) for name, value in end_to_end(fields) if name not in gone and not _forwarded(name)]
        return [
            (b"host", f"localhost:{self.port}".encode()),
            *passed,
            (b"x-forwarded-prefix", self.prefix.rstrip("/").encode()),
        ]

    def answer(self, fields: Iterable[tuple[bytes, bytes]], target: bytes) -> Fields:
        """Returns the fields of an answer to a request for ``target``. Raises BadAnswer for one in parts."""
        low = end_to_end(fields)
        _check_whole(low)
        passed = [(name, value) for name, value in low if name not in _NOT_BY_PATH and not _misleads(name)]
        kept = [(name, value) for name, value in passed if not name.startswith(b"access-control-")]
        places = [place for name, value in low if name == b"location" and (place := self._below(value, target))]
        return [*kept, *((b"location", place) for place in places[:1]), SANDBOXED]

    def _below(self, location: bytes, target: bytes) -> bytes | None:
        """Returns a redirect within the service, as seen from outside; None for another.

        A client sends its token wherever a redirect on our host leads.
        """
        own = f"http://localhost:{self.port}"
        text = location.decode("latin-1").strip()
        if not text.isascii() or not text.isprintable() or "\\" in text:
            return None
        try:
            found = urlsplit(urljoin(own + target.decode("latin-1"), text))
            origin = (found.scheme, found.hostname, found.port or 80)
        except ValueError:
            return None
        inside = origin in (("http", "localhost", self.port), ("http", "127.0.0.1", self.port))
        parts = found.path.lower().replace("%2e", ".").replace("%2f", "/").replace("%5c", "/").split("/")
        if not inside or found.username is not None or ".." in parts:
            return None
        query = f"?{found.query}" if found.query else ""
        fragment = f"#{found.fragment}" if found.fragment else ""
        return f"{self.prefix.rstrip('/')}/{found.path.lstrip('/')}{query}{fragment}".encode("ascii")


@dataclass(frozen=True, slots=True)
class ByHost:
    """The rules for a host name of the port's own, with the name of our cookie there."""

    host: str
    scheme: str
    cookie: str

    def request(self, fields: Iterable[tuple[bytes, bytes]]) -> Fields:
        gone = _FRAMING | _OURS
        passed: Fields = [(b"host", self.host.encode("ascii"))]
        for name, value in end_to_end(fields):
            if name in gone or _forwarded(name) or (name == b"referer" and TICKET.encode() in value):
                continue
            if name == b"cookie":
                value = self._without_ours(value)
                if not value:
                    continue
            passed.append((name, value))
        return [*passed, (b"x-forwarded-host", self.host.encode("ascii")), (b"x-forwarded-proto", self.scheme.encode())]

    def answer(self, fields: Iterable[tuple[bytes, bytes]], target: bytes) -> Fields:  # noqa: ARG002 - as by path
        low = end_to_end(fields)
        passed = [(name, value) for name, value in low if name not in _REWRITTEN_BY_HOST and not _misleads(name)]
        cookies = [made for name, value in low if name == b"set-cookie" and (made := self._of_this_host(value))]
        control = b",".join(value for name, value in low if name == b"cache-control")
        return [
            *passed,
            *((b"set-cookie", cookie) for cookie in cookies),
            (b"cache-control", _private(control)),
            # Other services are of the same site for a browser, which shows them nothing of this one.
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"content-security-policy", b"frame-ancestors 'self'"),
        ]

    def ours(self, fields: Iterable[tuple[bytes, bytes]]) -> list[str]:
        """Returns the values of our cookie in a request."""
        found = []
        for name, value in fields:
            for part in value.split(b";") if name == b"cookie" else ():
                key, _, text = part.strip().partition(b"=")
                if key.decode("latin-1") == self.cookie:
                    found.append(text.strip().decode("latin-1"))
        return found

    def _without_ours(self, value: bytes) -> bytes:
        ours = self.cookie.encode("ascii")
        return b"; ".join(part.strip() for part in value.split(b";") if part.partition(b"=")[0].strip() != ours)

    def _of_this_host(self, value: bytes) -> bytes | None:
        """Returns a cookie for this host alone; None for one of our name, or without one."""
        pair, *attributes = value.split(b";")
        name = pair.partition(b"=")[0].strip().lower()
        if b"=" not in pair or not name or name == self.cookie.lower().encode("ascii"):
            return None
        kept = [word for word in attributes if word.partition(b"=")[0].strip().lower() != b"domain"]
        return b";".join([pair, *kept])


def _forwarded(name: bytes) -> bool:
    # A service behind CGI's names (RFC 3875 §4.1.18) takes both signs for one.
    return name.replace(b"_", b"-").startswith(b"x-forwarded-")


def _misleads(name: bytes) -> bool:
    return name in _SPEAKS_FOR_MORE or _STEERS_PROXIES.fullmatch(name) is not None


def _check_whole(fields: Fields) -> None:
    """Raises BadAnswer for an answer of several documents.

    Browsers take cookies and policies from the fields of each part, where nothing of ours is.
    """
    for value in (value for name, value in fields if name == b"content-type"):
        if b"multipart/" in (kind := value.strip().lower()) and not _HARMLESS_PARTS.fullmatch(kind):
            raise BadAnswer(
                "the service's answer is 'multipart', whose parts have fields of their own; it is passed on by the"
                " host name of the port, not by path"
            )


def _private(control: bytes) -> bytes:
    """Returns Cache-Control for the caller alone: no cache between may keep the answer."""
    words = [word.strip() for word in control.split(b",") if word.strip()]
    kept = [word for word in words if word.partition(b"=")[0].strip().lower() not in _SHARED]
    return b", ".join([b"private", *kept])
