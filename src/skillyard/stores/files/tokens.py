"""Bearer tokens in one private file that the command line may change while a server runs.

A token is 256 random bits, so that no hash of it can be searched: a slow hash would only slow each request.
Digests are keyed (HMAC-SHA-256, the key in the same file), so that lists made beforehand, or elsewhere, do
not fit. A text that a user chose must be long for the same reason.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from skillyard.domain.errors import InvalidInput, StoreFault, shape
from skillyard.domain.principal import MAX_LENGTH, Principal, check_principal, check_token_value
from skillyard.ports.clock import Clock
from skillyard.ports.tokens import TokenInfo
from skillyard.stores.files.state_file import Stamp, StateFile
from skillyard.stores.files.token_file import Held, TokenTable, dump, load

T = TypeVar("T")

PREFIX = "sky_"
USED_EVERY_S = 60.0
"""How often the times of last use are written."""

logger = logging.getLogger(__name__)


class FileTokens:
    """A :class:`skillyard.ports.tokens.TokenStore`. What another process changes counts from the next
    :meth:`verify` on: that reads the file's stamp each time, and the file when the stamp differs."""

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
        """Seldom, not synced, and not at all while somebody else changes the file."""
        with self._file.locked(wait=False) as got_it:
            if not got_it:
                return
            table = self._read()
            if uses := self._uses(table):
                self._file.replace(dump(table.with_tokens(uses)), sync=False)

    def _uses(self, table: TokenTable) -> Sequence[Held]:
        """The tokens that were used later than the table says."""
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
