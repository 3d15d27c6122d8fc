"""Run records: compare-and-set, terminal is terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from skillyard.domain.work.record import RunRecord


class RecordStore(Protocol):
    async def insert(self, record: RunRecord) -> None:
        """Durable when it returns. Raises IdempotencyConflict when (principal, idempotency_key) is taken
        by a record with another ``request_digest`` or another run id."""
        ...

    async def update_running(self, record: RunRecord) -> bool:
        """Replaces a record that is still RUNNING.

        Returns False, and changes nothing, when it is terminal or absent.
        """
        ...

    async def finish(self, record: RunRecord) -> bool:
        """Move RUNNING to the record's terminal state; False when it was terminal already."""
        ...

    async def get(self, run_id: str) -> RunRecord | None: ...

    async def by_key(self, principal: str, idempotency_key: str) -> RunRecord | None: ...

    async def list(
        self, principal: str | None, *, limit: int = 50, after: str | None = None, status: str | None = None
    ) -> Sequence[RunRecord]:
        """Returns records, newest first, without ``network`` and ``needs``, which can be large.

        ``principal`` is None for those of all; ``after`` is the last run id of the page before.
        """
        ...

    async def unfinished(self) -> Sequence[RunRecord]:
        """All RUNNING records: what start-up has to attach or call lost."""
        ...

    async def sweep(self, older_than: float) -> int:
        """Delete terminal records that ended before ``older_than`` (UTC seconds); how many."""
        ...

    async def trim(self, most: int) -> int:
        """Deletes the oldest ended records of each principal above ``most``; returns their number."""
        ...
