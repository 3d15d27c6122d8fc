"""Bearer tokens in one private file that the command line may change while a server runs.

A token is 256 random bits, so that no hash of it can be searched: a slow hash would only slow each request.
Digests are keyed (HMAC-SHA-256, the key in the same file), so that lists made beforehand, or elsewhere, do
not fit. A text that a user chose must be long for the same reason.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypeVar

from skillyard.domain.errors import InvalidInput, StoreFault, shape
from skillyard.domain.principal import DEFAULT_PROJECT, MAX_LENGTH, Principal, Scope, check_principal, check_token_value
from skillyard.ports.clock import Clock
from skillyard.ports.tokens import TokenInfo
from skillyard.stores.files.state_file import Stamp, StateFile
from skillyard.values import dataclass

PLAIN_FORMAT, PROJECT_FORMAT, FORMAT = 1, 2, 3
"""Without projects, with them, and with agents and profiles. The least that holds all tokens is written, so that an
older skillyard can read the file. It must not read what it would misunderstand: a token of another project as one of
the default project, a token with a profile as one without."""


@dataclass(frozen=True, slots=True)
class Held:
    """One token: the keyed digest of its text, and its principal."""

    digest: bytes
    info: TokenInfo


@dataclass(frozen=True, slots=True)
class TokenTable:
    """All tokens. ``key`` is the HMAC key of their digests; ``by_start`` finds these by eight bytes."""

    key: bytes
    held: Mapping[str, Held]
    by_start: dict[bytes, list[Held]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for held in self.held.values():
            self.by_start.setdefault(held.digest[:8], []).append(held)

    def digest(self, token: str) -> bytes:
        return hmac.digest(self.key, token.encode(), "sha256")

    def find(self, token: str) -> Held | None:
        """Returns the token, in a time that does not tell how much of ``token`` is right.

        Nobody without the key can steer a digest, and digests that agree in eight bytes are compared in constant
        time."""
        digest = self.digest(token)
        for held in self.by_start.get(digest[:8], ()):
            if hmac.compare_digest(held.digest, digest):
                return held
        return None

    def with_tokens(self, changed: Iterable[Held]) -> TokenTable:
        """Returns a table in which these take the place of the tokens of the same names."""
        return TokenTable(self.key, {**self.held, **{held.info.principal.name: held for held in changed}})


def dump(table: TokenTable) -> bytes:
    tokens = [_entry(held) for _, held in sorted(table.held.items())]
    version = max((_format(held.info.principal) for held in table.held.values()), default=PLAIN_FORMAT)
    return json.dumps({"v": version, "key": table.key.hex(), "tokens": tokens}, indent=1).encode() + b"\n"


def _format(principal: Principal) -> int:
    if _more(principal):
        return FORMAT
    return PLAIN_FORMAT if principal.project == DEFAULT_PROJECT else PROJECT_FORMAT


def _more(principal: Principal) -> dict[str, Any]:
    """Returns the members that only :data:`FORMAT` has."""
    agent = {} if principal.agent == principal.name else {"agent": principal.agent}
    profile = {} if principal.profile is None else {"profile": principal.profile}
    return {**agent, **({"agents": list(principal.agents)} if principal.agents else {}), **profile}


def load(data: bytes, name: str) -> TokenTable:
    """Raises StoreFault when the file is damaged or of another format."""
    try:
        document = json.loads(data)
        if document["v"] not in (PLAIN_FORMAT, PROJECT_FORMAT, FORMAT):
            raise StoreFault(f"{name} was written by another version of skillyard; upgrade skillyard")
        held = [_held(entry) for entry in document["tokens"]]
        key = bytes.fromhex(document["key"])
        if len(key) < 32:
            raise ValueError("short key")
    except (ValueError, KeyError, TypeError):
        raise StoreFault(f"{name} is damaged; restore it from a backup") from None
    return TokenTable(key, {one.info.principal.name: one for one in held})


def _entry(held: Held) -> dict[str, Any]:
    info = held.info
    project = info.principal.project
    return {
        "name": info.principal.name,
        **({} if project == DEFAULT_PROJECT else {"project": project}),
        **_more(info.principal),
        "digest": held.digest.hex(),
        "scopes": sorted(info.principal.scopes),
        "skills": list(info.principal.skills),
        "created_at": info.created_at,
        "last_used_at": info.last_used_at,
        "revoked": info.revoked,
    }


def _held(entry: Mapping[str, Any]) -> Held:
    principal = Principal(
        str(entry["name"]),
        frozenset(Scope(scope) for scope in entry["scopes"]),
        tuple(str(pattern) for pattern in entry["skills"]),
        str(entry.get("project", DEFAULT_PROJECT)),
        str(entry.get("agent", "")),
        tuple(str(pattern) for pattern in entry.get("agents", ())),
        None if (profile := entry.get("profile")) is None else str(profile),
    )
    used = entry["last_used_at"]
    info = TokenInfo(
        principal, float(entry["created_at"]), None if used is None else float(used), entry["revoked"] is not False
    )
    return Held(bytes.fromhex(entry["digest"]), info)


T = TypeVar("T")

PREFIX = "sky_"
USED_EVERY_S = 60.0
"""How often the times of last use are written."""

logger = logging.getLogger(__name__)


class FileTokens:
    """A :class:`skillyard.ports.tokens.TokenStore`. A change by another process counts from the next :meth:`verify` on:
    that reads the file's stamp each time, and the file when the stamp differs."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._file = StateFile(path)
        self._clock = clock
        self._seen: tuple[Stamp, TokenTable] | None = None
        self._used: dict[str, float] = {}
        self._used_written = float("-inf")

    async def create(self, principal: Principal, value: str | None = None) -> str:
        """As the port says; the name of a revoked token may be used again, for the same principal."""
        check_principal(principal)
        token = PREFIX + secrets.token_urlsafe(32) if value is None else check_token_value(value)
        await asyncio.to_thread(self._change, lambda table: (self._with_new(table, principal, token), None))
        return token

    async def verify(self, token: str) -> Principal | None:
        """Raises StoreFault when the file is damaged, open to other users, or of a newer skillyard."""
        if len(token) > MAX_LENGTH or not token.isascii():
            return None
        held = (await self._table()).find(token)
        if held is None or held.info.revoked:
            return None
        await self._note_use(held.info.principal.name)
        return held.info.principal

    async def revoke(self, name: str) -> bool:
        return await asyncio.to_thread(self._change, lambda table: _revoked(table, name))

    async def list(self) -> Sequence[TokenInfo]:
        table = await self._table()
        held = table.with_tokens(self._uses(table)).held
        return [held[name].info for name in sorted(held)]

    async def _table(self) -> TokenTable:
        stamp = self._file.stamp()
        if self._seen is None or stamp != self._seen[0]:
            self._seen = (stamp, await asyncio.to_thread(self._read))
        return self._seen[1]

    async def _note_use(self, name: str) -> None:
        now = self._clock.monotonic()
        self._used[name] = self._clock.now()
        if now - self._used_written < USED_EVERY_S:
            return
        self._used_written = now
        try:
            await asyncio.to_thread(self._write_uses)
        except StoreFault as fault:
            logger.warning("the times of last use of tokens are not written: %s", fault)

    def _read(self) -> TokenTable:
        data = self._file.read()
        return TokenTable(os.urandom(32), {}) if data is None else load(data, str(self._file.path))

    def _change(self, change: Callable[[TokenTable], tuple[TokenTable, T]]) -> T:
        with self._file.locked():
            table = self._read()
            changed, result = change(table)
            if changed is not table:
                self._file.replace(dump(changed))
            return result

    def _write_uses(self) -> None:
        """Writes the times of last use, unsynced, unless another process changes the file now."""
        with self._file.locked(wait=False) as got_it:
            if not got_it:
                return
            table = self._read()
            if uses := self._uses(table):
                self._file.replace(dump(table.with_tokens(uses)), sync=False)

    def _uses(self, table: TokenTable) -> Sequence[Held]:
        """Returns the tokens that were used later than the table says."""
        return [
            Held(held.digest, replace(held.info, last_used_at=self._used[name]))
            for name, held in table.held.items()
            if _later(self._used.get(name), held.info)
        ]

    def _with_new(self, table: TokenTable, principal: Principal, token: str) -> TokenTable:
        taken = table.held.get(principal.name)
        if taken is not None and not taken.info.revoked:
            raise InvalidInput("name", "is taken; revoke that token first", shape(principal.name))
        if table.find(token) is not None:
            raise InvalidInput("value", "is or was another token's", shape(token))
        info = TokenInfo(principal, self._clock.now(), None, revoked=False)
        return table.with_tokens([Held(table.digest(token), info)])


def _revoked(table: TokenTable, name: str) -> tuple[TokenTable, bool]:
    held = table.held.get(name)
    if held is None or held.info.revoked:
        return table, False
    return table.with_tokens([Held(held.digest, replace(held.info, revoked=True))]), True


def _later(used: float | None, info: TokenInfo) -> bool:
    if used is None or used < info.created_at:  # an earlier token of that name was
        return False
    return info.last_used_at is None or used > info.last_used_at
