"""Tells who asks: by our tokens as API keys, and by the access tokens of sandboxes.

The access token of a sandbox is made of its id with a key of the data directory. So it is the same after a restart,
and is stored nowhere. It opens that sandbox alone.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from starlette.types import Scope

from skillyard.domain.errors import RunNotFound, SandboxGone, Unauthenticated
from skillyard.domain.principal import Principal
from skillyard.domain.work.record import RunRecord
from skillyard.engine.services.sandboxes import SandboxService
from skillyard.faces.e2b.errors import NotRunning, RpcRefusal
from skillyard.faces.http.guard import Authenticator
from skillyard.faces.http.services.revocation import Revocation, Still

KEY_BYTES = 32
_RUN = "run_"
_ID = re.compile(r"[a-z0-9]{1,52}")
TRAFFIC = b"e2b-traffic-access-token"
"""The field by which a program shows the token for the ports of a sandbox."""
READ, WRITE = "read", "write"
_V1 = "v1_"
_ENVD, _TRAFFIC = b"envd", b"traffic"


def sandbox_id(record: RunRecord) -> str:
    """Returns the id by which E2B's programs know the sandbox of a run."""
    return record.run_id.removeprefix(_RUN)


def run_id(sandbox: str) -> str:
    """Returns the run of a sandbox; empty for a text that names none."""
    return f"{_RUN}{sandbox}" if _ID.fullmatch(sandbox) else ""


class Tokens:
    """Access tokens of sandboxes. ``key`` gives the key that they are made with."""

    def __init__(self, key: Callable[[], bytes]) -> None:
        self._key = key

    def envd(self, run: str) -> str:
        """Returns the token for the daemon of a sandbox: its programs and files."""
        return self._token(_ENVD, run)

    def traffic(self, run: str) -> str:
        """Returns the token for the ports that programs of a sandbox listen on."""
        return self._token(_TRAFFIC, run)

    def _token(self, use: bytes, run: str) -> str:
        digest = hmac.digest(self._key(), use + b"\0" + run.encode(), "sha256")
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


@dataclass(frozen=True, slots=True)
class Signed:
    """A URL that its owner signed for one path and operation, perhaps up to ``expiration``."""

    path: str
    operation: str
    user: str
    signature: str
    expiration: str

    def fits(self, token: str) -> bool:
        """Returns whether it was signed with this access token."""
        parts = [self.path, self.operation, self.user, token, *([self.expiration] if self.expiration else [])]
        digest = hashlib.sha256(":".join(parts).encode("utf-8", "surrogatepass")).digest()
        wanted = _V1 + base64.b64encode(digest).rstrip(b"=").decode("ascii")
        return hmac.compare_digest(wanted.encode(), self.signature.encode("utf-8", "replace"))


class Access:
    """Finds principals and sandboxes of requests."""

    def __init__(
        self,
        sandboxes: Callable[[], SandboxService],
        authenticator: Authenticator,
        still: Still,
        tokens: Tokens,
        now: Callable[[], float],
    ) -> None:
        self._sandboxes = sandboxes
        self._authenticator = authenticator
        self._still = still
        self._revocation = Revocation(still)
        self.tokens = tokens
        self._now = now

    async def principal(self, scope: Scope) -> Principal:
        """Returns the principal of an API key. Raises Unauthenticated."""
        keys = [value for name, value in scope["headers"] if name == b"x-api-key"]
        if len(keys) != 1 or not keys[0].strip():
            raise Unauthenticated("X-API-KEY: must be a token of this server, once; 'skillyard token create' makes one")
        return await self._authenticator.principal(f"Bearer {keys[0].decode('latin-1').strip()}")

    async def of_daemon(self, named: str, headers: Mapping[bytes, bytes]) -> RunRecord:
        """Returns the sandbox that a request to its daemon names, and has the access token of.

        Raises NotRunning, RpcRefusal.
        """
        record = self.find(named)
        given = headers.get(b"x-access-token", b"")
        if not hmac.compare_digest(given, self.tokens.envd(record.run_id).encode()):
            raise RpcRefusal("unauthenticated", "X-Access-Token: must be the access token of this sandbox")
        return await self.checked(record)

    async def of_signature(self, signed: Signed, named: str = "") -> RunRecord:
        """Returns the sandbox whose access token signed a URL. One that ``named`` names must be that one.

        A URL that an SDK makes for a server of one's own names no sandbox: its signature does.
        Raises Unauthenticated, NotRunning.
        """
        if signed.expiration and not (signed.expiration.isdigit() and len(signed.expiration) < 16):
            raise Unauthenticated("signature_expiration: must be a time in seconds")
        candidates: Iterable[RunRecord] = [self.find(named)] if named else self._sandboxes().all()
        for record in candidates:
            if signed.fits(self.tokens.envd(record.run_id)):
                if signed.expiration and int(signed.expiration) < self._now():
                    raise Unauthenticated("signature is already expired")
                return await self.checked(record)
        raise Unauthenticated("invalid signature")

    async def of_traffic(self, run: str, token: str) -> Principal | None:
        """Returns the owner of a sandbox whose traffic token this is; None for another one."""
        try:
            record = self._sandboxes().live(run)
        except RunNotFound:
            return None
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.tokens.traffic(run).encode()):
            return None
        principal = await self._still(record.principal)
        if principal is not None:
            with suppress(SandboxGone):  # of one that stays paused, the port answers that
                await self._sandboxes().awake(record)
        return principal

    @asynccontextmanager
    async def while_good(self, named: str) -> AsyncIterator[None]:
        """Runs the block. Raises TimeoutError soon after the owner of a sandbox lost its token, NotRunning."""
        async with self._revocation.while_good(self.find(named).principal):
            yield

    def find(self, named: str) -> RunRecord:
        """Returns the live sandbox of an id. Raises NotRunning."""
        try:
            return self._sandboxes().live(run_id(named))
        except RunNotFound:
            raise NotRunning(named[:64]) from None

    async def checked(self, record: RunRecord) -> RunRecord:
        """Returns a sandbox. Raises Unauthenticated where its principal has lost its token."""
        if await self._still(record.principal) is None:
            raise Unauthenticated("the token of this sandbox's owner was revoked", presented=True)
        return record
