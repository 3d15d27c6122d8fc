"""A repeated call with the same key gets the first run (issue: additive ``idempotency_key``).

Within one engine the second caller waits for the first; across restarts the record answers. Keys belong to a
principal, and are bound to what was asked by its digest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from skillyard.domain.errors import IdempotencyConflict
from skillyard.domain.work.record import RunRecord, RunStatus
from skillyard.ports.records import RecordStore

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _First:
    digest: str
    ended: asyncio.Future[None]


class Keys:
    """The keys that are being worked on."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records
        self._first: dict[Key, _First] = {}

    @asynccontextmanager
    async def claim(self, key: Key, digest: str) -> AsyncIterator[RunRecord | None]:
        """The finished record of the first call; None when this is the first, and the work is the body's.

        Raises IdempotencyConflict when the key stands for another request.
        """
        while (first := self._first.get(key)) is not None:
            _check(digest, first.digest)
            await asyncio.shield(first.ended)
        mine = _First(digest, asyncio.get_running_loop().create_future())
        self._first[key] = mine
        try:
            record = await self._records.by_key(*key)
            if record is not None:
                _check(digest, record.request_digest)
            yield record if record is not None and record.status is not RunStatus.RUNNING else None
        finally:
            del self._first[key]
            mine.ended.set_result(None)


def _check(digest: str, first: str) -> None:
    if digest != first:
        raise IdempotencyConflict("idempotency_key", "was used before, with other parameters")
