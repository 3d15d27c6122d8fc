"""In-memory twins of the stores' ports, and a clock and ids that a test steers.

They keep the ports' promises, as the suites beside them show, and nothing else: what they hold is gone with
them. :class:`skillyard.testing.memory_blobs.MemoryBlobs` is the blob store's.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from dataclasses import replace

from skillyard.domain.checks import check_page, check_unicode
from skillyard.domain.errors import IdempotencyConflict, InvalidInput, shape, shown
from skillyard.domain.principal import Principal, check_principal, check_token_value
from skillyard.domain.work.record import RunRecord, RunStatus, check_status
from skillyard.ports.clock import Clock
from skillyard.ports.tokens import TokenInfo


class ManualClock:
    """A clock that moves only when told to. Both readings are seconds."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._monotonic = 0.0

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self._now += seconds
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Sets the clock as an operator does: only ``now`` moves, also backwards."""
        self._now += seconds


class SeqIds:
    """``run_1``, ``blob:1``, and so on."""

    def __init__(self) -> None:
        self._runs = itertools.count(1)
        self._blobs = itertools.count(1)

    def run(self) -> str:
        return f"run_{next(self._runs)}"

    def blob(self) -> str:
        return f"blob:{next(self._blobs)}"


class MemoryRecords:
    """A :class:`skillyard.ports.records.RecordStore`."""

    def __init__(self) -> None:
        self._records: dict[str, RunRecord] = {}

    async def insert(self, record: RunRecord) -> None:
        for name in ("run_id", "principal", "idempotency_key"):
            check_unicode(name, getattr(record, name) or "")
        if record.idempotency_key is not None:
            held = await self.by_key(record.principal, record.idempotency_key)
            if held is not None:
                if (held.run_id, held.request_digest) == (record.run_id, record.request_digest):
                    return
                raise IdempotencyConflict("idempotency_key", "was used before, for another run")
        if record.run_id in self._records:
            raise InvalidInput("run_id", "is taken", shown(record.run_id))
        self._records[record.run_id] = record

    async def update_running(self, record: RunRecord) -> bool:
        if record.status is not RunStatus.RUNNING:
            raise ValueError("update_running takes a running record; finish moves it on")
        return self._replace(record)

    async def finish(self, record: RunRecord) -> bool:
        if record.status is RunStatus.RUNNING:
            raise ValueError("finish takes a record in a terminal state")
        return self._replace(record)

    async def get(self, run_id: str) -> RunRecord | None:
        return self._records.get(run_id)

    async def by_key(self, principal: str, idempotency_key: str) -> RunRecord | None:
        key = (principal, idempotency_key)
        return next((r for r in self._records.values() if (r.principal, r.idempotency_key) == key), None)

    async def list(
        self, principal: str | None, *, limit: int = 50, after: str | None = None, status: str | None = None
    ) -> Sequence[RunRecord]:
        check_page(limit)
        check_status(status)
        found = [r for r in reversed(self._records.values()) if principal is None or r.principal == principal]
        if after is not None:
            ids = [record.run_id for record in found]
            if after not in ids:
                raise InvalidInput("after", "must be the id of an existing run", shown(after))
            found = found[ids.index(after) + 1 :]
        page = [record for record in found if status is None or record.status == status][:limit]
        return [replace(record, network=None, needs=None) for record in page]

    async def unfinished(self) -> Sequence[RunRecord]:
        return [record for record in self._records.values() if record.status is RunStatus.RUNNING]

    async def sweep(self, older_than: float) -> int:
        ended = [
            record.run_id
            for record in self._records.values()
            if record.status is not RunStatus.RUNNING
            and (record.created_at if record.ended_at is None else record.ended_at) < older_than
        ]
        for run_id in ended:
            del self._records[run_id]
        return len(ended)

    async def trim(self, most: int) -> int:
        held: dict[str, list[RunRecord]] = {}
        for record in self._records.values():
            held.setdefault(record.principal, []).append(record)
        gone = []
        for records in held.values():
            ended = [record.run_id for record in records if record.status is not RunStatus.RUNNING]
            gone += ended[: max(0, len(records) - most)]
        for run_id in gone:
            del self._records[run_id]
        return len(gone)

    def _replace(self, record: RunRecord) -> bool:
        held = self._records.get(record.run_id)
        if held is None or held.status is not RunStatus.RUNNING:
            return False
        if (held.principal, held.idempotency_key) != (record.principal, record.idempotency_key):
            return False
        self._records[record.run_id] = record
        return True


class MemoryTokens:
    """A :class:`skillyard.ports.tokens.TokenStore`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[str, tuple[str, TokenInfo]] = {}

    async def create(self, principal: Principal, value: str | None = None) -> str:
        check_principal(principal)
        token = f"sky_{secrets.token_urlsafe(32)}" if value is None else check_token_value(value)
        if principal.name in self._held and not self._held[principal.name][1].revoked:
            raise InvalidInput("name", "is taken; revoke that token first", shape(principal.name))
        if any(text == token for text, _ in self._held.values()):
            raise InvalidInput("value", "is or was another token's", shape(token))
        self._held[principal.name] = (token, TokenInfo(principal, self._clock.now(), None, revoked=False))
        return token

    async def verify(self, token: str) -> Principal | None:
        for name, (text, info) in self._held.items():
            if text == token and not info.revoked:
                used = TokenInfo(info.principal, info.created_at, self._clock.now(), revoked=False)
                self._held[name] = (text, used)
                return info.principal
        return None

    async def revoke(self, name: str) -> bool:
        text, info = self._held.get(name, ("", None))
        if info is None or info.revoked:
            return False
        self._held[name] = (text, TokenInfo(info.principal, info.created_at, info.last_used_at, revoked=True))
        return True

    async def list(self) -> Sequence[TokenInfo]:
        return [info for _, (_, info) in sorted(self._held.items())]
