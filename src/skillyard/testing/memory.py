"""In-memory twins of the stores' ports, and a clock and ids that a test steers.

They keep the ports' promises, as the suites beside them show, and nothing else: what they hold is gone with
them. :class:`skillyard.testing.memory_blobs.MemoryBlobs` is the blob store's.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from skillyard.domain.checks import check_page, check_unicode
from skillyard.domain.errors import IdempotencyConflict, InvalidInput, shape, shown
from skillyard.domain.principal import AgentScope, Principal, check_principal, check_token_value
from skillyard.domain.sandbox.spec import Owner
from skillyard.domain.work.callback import Callback, parse_url
from skillyard.domain.work.event import Event, next_event, of_end
from skillyard.domain.work.labels import check_labels
from skillyard.domain.work.record import RunKind, RunRecord, check_status
from skillyard.ports.clock import Clock
from skillyard.ports.records import NO_LABELS, Listener
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

    def boottime(self) -> float:
        return self._monotonic

    def boot(self) -> str:
        return "boot"

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
        self._sessions = itertools.count(1)

    def run(self) -> str:
        return f"run_{next(self._runs)}"

    def blob(self) -> str:
        return f"blob:{next(self._blobs)}"

    def session(self) -> str:
        return f"ses_{next(self._sessions)}"


class MemoryRecords:
    """A :class:`skillyard.ports.records.RecordStore`."""

    def __init__(self) -> None:
        self._records: dict[str, RunRecord] = {}
        self._requests: dict[str, str] = {}
        self._events: dict[str, list[Event]] = {}
        self._listeners: tuple[Listener, ...] = ()
        self.called: list[str] = []
        """Runs that ended with a callback."""

    def listen(self, listener: Listener) -> None:
        self.ignore(listener)
        self._listeners = (*self._listeners, listener)

    def ignore(self, listener: Listener) -> None:
        self._listeners = tuple(known for known in self._listeners if known != listener)

    async def insert(self, record: RunRecord, request: str | None = None) -> None:
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
        self._events[record.run_id] = []
        if request is not None:
            self._requests[record.run_id] = request
        self._add(record, record.created_at, record.status.value, {})
        self._tell(record)

    async def change(
        self, record: RunRecord, at: float, kind: str = "", data: Mapping[str, Any] | None = None
    ) -> RunRecord | None:
        if not record.status.live:
            raise ValueError("change takes a live record; finish moves it on")
        held = self._same(record)
        if held is None:
            return None
        lease = record.lease
        if (
            lease is not None
            and held.lease is not None
            and (lease.holder, lease.boot) == (held.lease.holder, held.lease.boot)
        ):
            lease = replace(lease, until=max(lease.until, held.lease.until))
        network = record.network if held.network is None else held.network
        self._replace(replace(record, lease=lease, network=network, labels=held.labels))
        if held.status is not record.status:
            self._add(record, at, record.status.value, {})
        if kind:
            self._add(record, at, kind, dict(data or {}))
        changed = self._records[record.run_id]
        self._tell(changed)
        return changed

    async def finish(self, record: RunRecord) -> bool:
        if record.status.live:
            raise ValueError("finish takes a record in a terminal state")
        held = self._same(record)
        if held is None:
            return False
        self._replace(replace(record, labels=held.labels))
        self._requests.pop(record.run_id, None)
        at = record.created_at if record.ended_at is None else record.ended_at
        self._add(record, at, record.status.value, of_end(record))
        if record.callback is not None:
            self.called.append(record.run_id)
        self._tell(self._records[record.run_id])
        return True

    async def note_gone(self, run_id: str, gone_ms: float) -> None:
        held = self._records.get(run_id)
        if held is not None and not held.status.live:
            self._records[run_id] = replace(held, usage={**held.usage, "gone_ms": gone_ms})

    async def keep_network(self, run_id: str, network: dict[str, Any]) -> bool:
        held = self._records.get(run_id)
        if held is None or not held.status.live:
            return False
        self._records[run_id] = replace(held, network=network)
        return True

    async def renew(self, holder: str, until: float) -> int:
        own = {
            run_id: replace(record, lease=replace(record.lease, until=until))
            for run_id, record in self._records.items()
            if record.status.live and record.lease is not None and record.lease.holder == holder
        }
        self._records |= own
        return len(own)

    async def request(self, run_id: str) -> str | None:
        return self._requests.get(run_id)

    async def events(self, run_id: str, after: int = 0, limit: int = 1000) -> Sequence[Event]:
        check_page(limit)
        return [event for event in self._events.get(run_id, ()) if event.seq > after][:limit]

    async def get(self, run_id: str) -> RunRecord | None:
        return self._records.get(run_id)

    async def by_key(self, principal: str, idempotency_key: str) -> RunRecord | None:
        key = (principal, idempotency_key)
        return next((r for r in self._records.values() if (r.principal, r.idempotency_key) == key), None)

    async def list(
        self,
        principal: str | None,
        *,
        limit: int = 50,
        after: str | None = None,
        status: str | None = None,
        labels: Mapping[str, str] = NO_LABELS,
        tasks_of: AgentScope | None = None,
        services: bool | None = None,
    ) -> Sequence[RunRecord]:
        check_page(limit)
        check_status(status)
        found = [r for r in reversed(self._records.values()) if principal is None or r.principal == principal]
        if tasks_of is not None:
            found = [record for record in found if _is_task_of(record, tasks_of)]
        if after is not None:
            ids = [record.run_id for record in found]
            if after not in ids:
                raise InvalidInput("after", "must be the id of an existing run", shown(after))
            found = found[ids.index(after) + 1 :]
        if services is not None:
            found = [record for record in found if (record.service is not None) == services]
        wanted = check_labels(labels).items()
        found = [record for record in found if wanted <= record.labels.items()]
        page = [record for record in found if status is None or record.status == status][:limit]
        return [replace(record, network=None, needs=None) for record in page]

    async def unfinished(self) -> Sequence[RunRecord]:
        return [record for record in self._records.values() if record.status.live]

    async def sweep(self, older_than: float) -> int:
        ended = [
            record.run_id
            for record in self._records.values()
            if not record.status.live
            and (record.created_at if record.ended_at is None else record.ended_at) < older_than
        ]
        for run_id in ended:
            del self._records[run_id], self._events[run_id]
        return len(ended)

    async def trim(self, most: int) -> int:
        held: dict[str, list[RunRecord]] = {}
        for record in self._records.values():
            held.setdefault(record.principal, []).append(record)
        gone = []
        for records in held.values():
            ended = [record.run_id for record in records if not record.status.live]
            gone += ended[: max(0, len(records) - most)]
        for run_id in gone:
            del self._records[run_id], self._events[run_id]
        return len(gone)

    def _same(self, record: RunRecord) -> RunRecord | None:
        """Returns the live record that ``record`` may replace."""
        held = self._records.get(record.run_id)
        if held is None or not held.status.live or held.revision != record.revision:
            return None
        mine = held.principal, held.idempotency_key
        return held if mine == (record.principal, record.idempotency_key) else None

    def _replace(self, record: RunRecord) -> None:
        self._records[record.run_id] = replace(record, revision=record.revision + record.status.live)

    def _add(self, record: RunRecord, at: float, kind: str, data: dict[str, Any]) -> None:
        events = self._events[record.run_id]
        event = next_event(len(events), at, kind, data)
        if event is not None and record.owner is Owner.TASK:
            events.append(event)

    def _tell(self, record: RunRecord) -> None:
        for listener in self._listeners:
            listener(record)


class MemoryCallbacks:
    """A :class:`skillyard.ports.records.CallbackStore` over :class:`MemoryRecords`."""

    def __init__(self, records: MemoryRecords) -> None:
        self._records = records
        self._noted: dict[str, Callback] = {}

    async def pending(self, limit: int, besides: Collection[str] = ()) -> Sequence[Callback]:
        found = [callback for run_id in self._records.called if (callback := await self.get(run_id)) is not None]
        waiting = [callback for callback in found if callback.next_at is not None and callback.host not in besides]
        return sorted(waiting, key=lambda callback: callback.next_at or 0.0)[:limit]

    async def get(self, run_id: str) -> Callback | None:
        record = await self._records.get(run_id)
        if record is None or record.callback is None or record.status.live:
            return None
        host = parse_url(record.callback).authority
        return self._noted.get(run_id, Callback(run_id, next_at=record.ended_at or record.created_at, host=host))

    async def note(self, callback: Callback) -> None:
        self._noted[callback.run_id] = callback


def _is_task_of(record: RunRecord, scope: AgentScope) -> bool:
    task = record.kind is RunKind.COMMAND and record.owner is Owner.TASK
    return task and AgentScope(record.project, record.agent) == scope


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
