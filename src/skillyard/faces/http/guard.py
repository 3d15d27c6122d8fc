"""Checks each request before its body is read: Host, Origin, framing, and the bearer token (RFC 6750).

DNS rebinding makes a browser call us under an attacker's name, so a name in ``Host`` must be ours; an address
cannot be rebound and is taken as it is. Answers across origins are given to pages that the operator named alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from types import MappingProxyType
from typing import Protocol
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from skillyard.domain.errors import Forbidden, Unauthenticated
from skillyard.domain.principal import LOCAL, Principal
from skillyard.faces.http.errors import BadRequest, HeadTooLarge, Misdirected, VersionNotSupported
from skillyard.faces.http.lifecycle import Lifecycle

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
WILDCARDS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - recognised, not bound

MAX_HEADERS = 100
HEAD_BYTES = 32 * 1024
"""Names and values of one request's headers."""

VERSIONS = frozenset({"1.0", "1.1"})


class Hosts:
    """The names of this server: the bound one, ``extra`` ones, and loopback's where it is bound."""

    def __init__(self, bound: str, extra: Iterable[str] = ()) -> None:
        self._any_address = bound in WILDCARDS
        self._names = {bound.lower(), *(name.lower() for name in extra)} - WILDCARDS
        if self._any_address or is_loopback(bound):
            self._names |= LOOPBACK_NAMES

    def __contains__(self, name: str | None) -> bool:
        if name is None:
            return False
        return name in self._names or (self._any_address and _is_address(name))


class Guard:
    """ASGI middleware. Raises Misdirected, Forbidden, BadRequest, HeadTooLarge and VersionNotSupported.

    Pages of ``origins`` may call beside the server's own.
    """

    def __init__(self, app: ASGIApp, hosts: Hosts, origins: Iterable[str] = ()) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        host, origins = check_head(scope)
        if not is_named(host, self._hosts):
            raise Misdirected("Host: is none of this server's names; see the setting allowed_hosts")
        if any(origin != f"{scope['scheme']}://{host}" and origin not in self._origins for origin in origins):
            raise Forbidden("Origin: other sites may not call this server; see the setting allowed_origins")


def is_named(host: str, hosts: Hosts) -> bool:
    """Returns whether a field Host, in lower case, names this server."""
    return _name_of(f"//{host}") in hosts


def check_head(scope: Scope) -> tuple[str, list[str]]:
    """Returns the host that a request names, and its origins, in lower case.

    Raises HeadTooLarge, BadRequest, VersionNotSupported, and Misdirected for a request that names no host.
    """
    headers, size = scope["headers"], 0
    host, origins, framed = "", [], set()
    for name, value in headers:
        size += len(name) + len(value)
        if name == b"host":
            host = value.decode("latin-1").lower()
        elif name == b"origin":
            origins.append(value.decode("latin-1").lower())
        elif name in _FRAMING:
            framed.add(name)
    if size > HEAD_BYTES or len(headers) > MAX_HEADERS:
        raise HeadTooLarge(f"a request has at most {MAX_HEADERS} headers with {HEAD_BYTES} bytes together")
    _check_framing(scope["http_version"], framed)
    return host, origins


_FRAMING = (b"content-length", b"transfer-encoding")


def _check_framing(version: str, framed: set[bytes]) -> None:
    """Refuses framing on which two servers may disagree (RFC 9112 §6.1, §6.3).

    Bytes after the end that one of them sees could be smuggled past the other.
    """
    if version not in VERSIONS:
        raise VersionNotSupported("this server speaks HTTP/1.1")
    if b"transfer-encoding" in framed and (len(framed) > 1 or version == "1.0"):
        raise BadRequest("Transfer-Encoding: neither with Content-Length nor in HTTP/1.0")


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    return _is_address(host) and ip_address(host).is_loopback


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _name_of(url: str) -> str | None:
    """Returns the host of a URL, without port and brackets; None for text that is not a URL."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    plain = not (parts.path or parts.query or parts.fragment or parts.username is not None)
    return parts.hostname if plain else None


OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Answered to anybody who reaches the port. Every other path, known or not, wants credentials."""

_KEY = "skillyard.principal"


class Verifier(Protocol):
    async def verify(self, token: str) -> Principal | None: ...


class Everybody:
    """Takes every caller for the local user. Fit for loopback only."""

    async def principal(self, _authorization: str | None) -> Principal:
        return LOCAL


class Bearer:
    """Takes the principal of a token. ``bind`` gives it the rights of its profile."""

    def __init__(self, tokens: Verifier, bind: Callable[[Principal], Principal] = lambda principal: principal) -> None:
        self._tokens = tokens
        self._bind = bind

    async def principal(self, authorization: str | None) -> Principal:
        """Raises Unauthenticated, the same for a token that never was and one that was revoked."""
        if authorization is None:
            raise Unauthenticated("this server wants a token: send 'Authorization: Bearer …'")
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Unauthenticated("Authorization: must be 'Bearer' and a token", presented=True)
        principal = await self._tokens.verify(token.strip())
        if principal is None:
            raise Unauthenticated("this token is unknown or revoked", presented=True)
        return self._bind(principal)


class Authenticator(Protocol):
    async def principal(self, authorization: str | None) -> Principal: ...


class Authentication:
    """ASGI middleware: finds the principal of a request before anything reads its body.

    ``described`` paths have metadata about their tokens, at the URL that their function returns.
    """

    def __init__(
        self,
        app: ASGIApp,
        lifecycle: Lifecycle,
        authenticator: Authenticator,
        open_paths: Iterable[str] = OPEN_PATHS,
        described: Mapping[str, Callable[[Scope], str]] = MappingProxyType({}),
    ) -> None:
        self._described = described
        self._app = app
        self._lifecycle = lifecycle
        self._authenticator = authenticator
        self._open = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in self._open:
            self._lifecycle.check()
            try:
                scope[_KEY] = await self._authenticator.principal(authorization_of(scope))
            except Unauthenticated as error:
                if scope["path"] in self._described:
                    error.details["resource_metadata"] = self._described[scope["path"]](scope)
                raise
        await self._app(scope, receive, send)


def principal_of(scope: Scope) -> Principal:
    """Returns the principal of a request. Only behind :class:`Authentication`, and not on an open path."""
    principal = scope[_KEY]
    assert isinstance(principal, Principal)
    return principal


def authorization_of(scope: Scope) -> str | None:
    """Returns the field Authorization. Raises Unauthenticated when it came more than once."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) > 1:
        raise Unauthenticated("Authorization: came more than once", presented=True)
    return values[0].decode("latin-1") if values else None
