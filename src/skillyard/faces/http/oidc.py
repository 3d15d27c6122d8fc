"""Takes signed tokens (JWT) of an issuer, and names it to clients (RFC 9728).

The name of such a principal is made of issuer and subject, so that no subject takes another principal's objects.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

from skillyard.config.faces.oidc import OidcSettings, is_secure
from skillyard.domain.errors import Unauthenticated
from skillyard.domain.principal import Principal
from skillyard.domain.principal import Scope as Right
from skillyard.faces.http.errors import MethodNotAllowed
from skillyard.faces.http.guard import Authenticator
from skillyard.faces.http.replies import reply
from skillyard.faces.rpc.wire import dumps

logger = logging.getLogger("skillyard.oidc")

METADATA = "/.well-known/oauth-protected-resource"
KEEP_S, AGAIN_S, FETCH_S = 600.0, 30.0, 5.0
MOST_BYTES = 1024 * 1024
LONGEST = 16 * 1024
_DISCOVERY = "/.well-known/openid-configuration"


class IssuedTokens:
    """An authenticator: tokens of the issuer are checked here, all others by ``own``."""

    def __init__(
        self,
        settings: OidcSettings,
        own: Authenticator,
        bind: Callable[[Principal], Principal] = lambda principal: principal,
    ) -> None:
        self._settings = settings
        self._own = own
        self._bind = bind
        self._keys = _Keys(settings)

    async def principal(self, authorization: str | None) -> Principal:
        """Raises Unauthenticated for a token that is not valid now, whatever it lacks."""
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or token.count(".") != 2:
            return await self._own.principal(authorization)
        claims = await self._claims(token)
        return self._bind(self._principal(claims))

    async def _claims(self, token: str) -> Mapping[str, Any]:
        import jwt

        settings = self._settings
        try:
            if len(token) > LONGEST:
                raise jwt.InvalidTokenError("it is too long")
            key = await self._keys.of(str(jwt.get_unverified_header(token).get("kid", "")))
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(settings.algorithms),
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway_s,
                options={"require": ["exp", "iss", "sub", "aud"]},
            )
        except jwt.PyJWTError as error:
            logger.info("a token of the issuer is refused: %s", error)
            raise Unauthenticated("this token is not valid here", presented=True) from None
        return claims

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        settings = self._settings
        scopes = frozenset(settings.scopes)
        if "scope" in claims:  # in any other form than text or a list it names none
            named = claims["scope"]
            words = named.split() if isinstance(named, str) else named if isinstance(named, list) else []
            scopes &= {right for right in Right if right.value in words}
        subject = json.dumps([claims["iss"], claims["sub"]]).encode()
        name = f"oidc-{hashlib.sha256(subject).hexdigest()[:40]}"
        return Principal(name, scopes, project=settings.project, profile=settings.profile)


class _Keys:
    """The issuer's keys, fetched when a token names one that is not known, and seldom."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._found: dict[str, Any] = {}
        self._fetched = self._confirmed = float("-inf")
        self._line = asyncio.Lock()

    async def of(self, kid: str) -> Any:
        """Returns a key. Raises jwt.InvalidTokenError for one that the issuer lacks or that cannot be fetched."""
        import jwt

        clock, longest = asyncio.get_running_loop().time, self._settings.keys_s
        if kid in self._found and clock() - self._fetched <= KEEP_S and clock() - self._confirmed <= longest:
            return self._found[kid]  # tokens with keys that nobody knows, and a slow issuer, hold back no other
        async with self._line:
            age = clock() - self._fetched
            if age > KEEP_S or (kid not in self._found and age > AGAIN_S):
                self._fetched = clock()
                if found := await self._fetch():
                    self._found, self._confirmed = found, clock()
            if clock() - self._confirmed > longest:
                self._found = {}
        if kid not in self._found:
            raise jwt.InvalidTokenError("its key is not one of the issuer's")
        return self._found[kid]

    async def _fetch(self) -> dict[str, Any]:
        import httpx2
        import jwt

        try:
            async with httpx2.AsyncClient(timeout=FETCH_S, follow_redirects=False, trust_env=False) as http:
                url = self._settings.jwks_url or await self._discovered(http)
                keys = jwt.PyJWKSet.from_dict(await _json(http, url)).keys
        except (httpx2.HTTPError, jwt.PyJWTError, ValueError, KeyError, TypeError) as error:
            logger.warning("the issuer's keys cannot be fetched: %s", error)
            return {}
        return {key.key_id or "": key for key in keys if key.public_key_use in (None, "sig")}

    async def _discovered(self, http: Any) -> str:
        """Returns where the issuer's metadata say that its keys are. Raises ValueError, KeyError, httpx2.HTTPError."""
        issuer = self._settings.issuer
        about = await _json(http, f"{issuer.rstrip('/')}{_DISCOVERY}")
        if about["issuer"] != issuer:
            raise ValueError(f"the metadata are of another issuer than '{issuer}'")
        url = str(about["jwks_uri"])
        if not is_secure(url):
            raise ValueError("jwks_uri: is not an https URL")
        return url


async def _json(http: Any, url: str) -> Any:
    data = b""
    async with http.stream("GET", url) as response:
        response.raise_for_status()
        async for chunk in response.aiter_bytes():
            data += chunk
            if len(data) > MOST_BYTES:
                raise ValueError("the answer is too large")
    return json.loads(data)


def metadata_of(settings: OidcSettings) -> Any:
    """Returns the ASGI application that says where tokens for ``/mcp`` come from. It needs no token itself."""

    async def metadata(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodNotAllowed("GET", "HEAD")
        about: dict[str, Any] = {
            "resource": resource_of(scope),
            "bearer_methods_supported": ["header"],
            "scopes_supported": sorted(right.value for right in settings.scopes),
        }
        if settings.on:
            about["authorization_servers"] = [settings.issuer]
        await reply(send, 200, dumps(about))

    return metadata


def resource_of(scope: Scope, path: str = "/mcp") -> str:
    """Returns a URL of this server as the client calls it. The guard has checked the name."""
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
    return f"{scope['scheme']}://{host}{path}"
