"""Who is asking: bearer tokens (RFC 6750), or the local user where the operator asked for no auth."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from skillyard.domain.errors import Unauthenticated
from skillyard.domain.principal import LOCAL, Principal
from skillyard.faces.http.lifecycle import Lifecycle

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Answered to anybody who reaches the port. Every other path, known or not, wants credentials."""

_KEY = "skillyard.principal"


class Verifier(Protocol):
    async def verify(self, token: str) -> Principal | None: ...


class Everybody:
    """Whoever reaches the port is the local user. Fit for loopback only."""

    async def principal(self, _authorization: str | None) -> Principal:
        return LOCAL


class Bearer:
    def __init__(self, tokens: Verifier) -> None:
        self._tokens = tokens

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
        return principal


class Authenticator(Protocol):
    async def principal(self, authorization: str | None) -> Principal: ...


class Authentication:
    """ASGI middleware: puts the principal into the scope, or raises before anything reads the body."""

    def __init__(
        self,
        app: ASGIApp,
        lifecycle: Lifecycle,
        authenticator: Authenticator,
        open_paths: Iterable[str] = OPEN_PATHS,
    ) -> None:
        self._app = app
        self._lifecycle = lifecycle
        self._authenticator = authenticator
        self._open = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in self._open:
            self._lifecycle.check()
            scope[_KEY] = await self._authenticator.principal(_authorization(scope))
        await self._app(scope, receive, send)


def principal_of(scope: Scope) -> Principal:
    """Returns the principal of a request. Only behind :class:`Authentication`, and not on an open path."""
    principal = scope[_KEY]
    assert isinstance(principal, Principal)
    return principal


def _authorization(scope: Scope) -> str | None:
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) > 1:
        raise Unauthenticated("Authorization: came more than once", presented=True)
    return values[0].decode("latin-1") if values else None
