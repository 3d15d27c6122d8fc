"""Who may even talk to this server: Host and Origin, against pages that a browser was lured to.

DNS rebinding makes a browser call us under an attacker's name, so a name in ``Host`` must be ours; an address
cannot be rebound and is taken as it is. No cross-origin answer is ever given: there are no CORS headers.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from skillyard.domain.errors import Forbidden
from skillyard.faces.http.errors import Misdirected

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
WILDCARDS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - recognised, not bound


class Hosts:
    """The names that requests may address us by: the bound one, ``extra`` ones, loopback's where bound."""

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
    """ASGI middleware. Raises Misdirected and Forbidden."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        host = origin = None
        for name, value in scope["headers"]:
            if name == b"host":
                host = value.decode("latin-1").lower()
            elif name == b"origin":
                origin = value.decode("latin-1").lower()
        if host is None or _name_of(f"//{host}") not in self._hosts:
            raise Misdirected("Host: is none of this server's names; see the setting allowed_hosts")
        if origin is not None and origin != f"{scope['scheme']}://{host}":
            raise Forbidden("Origin: other sites may not call this server")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
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
    """The host of a URL, without port and brackets; None for what is no URL."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    plain = not (parts.path or parts.query or parts.fragment or parts.username is not None)
    return parts.hostname if plain else None
