"""Records of runs and of jobs: compare-and-set on the revision, terminal is terminal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from skillyard.domain.principal import AgentScope
from skillyard.domain.work.callback import Callback
from skillyard.domain.work.event import Event
from skillyard.domain.work.job import JobRecord
from skillyard.domain.work.record import RunRecord

NO_LABELS: Mapping[str, str] = {}
Listener = Callable[[RunRecord], None]


class RecordStore(Protocol):
    """Stores records, and the events of those that are owned as TASK.

    There is an event for each state that such a record gets, added in the transaction that changes it, and others that
    a driver adds. A record that is owned as RUN has none: it tells all of them itself."""

    async def insert(self, record: RunRecord, request: str | None = None) -> None:
        """Stores a live record, or that of a run of this server with its end. Durable when it returns.

        ``request`` is kept beside the record until that has ended. Raises IdempotencyConflict when (principal,
        idempotency_key) is taken by a record with another ``request_digest`` or another run id.
        """
        ...

    async def change(
        self, record: RunRecord, at: float, kind: str = "", data: Mapping[str, Any] | None = None
    ) -> RunRecord | None:
        """Replaces a live record that still has the revision of ``record``, which is live too.

        ``at`` is the time of the change, for the event of a new state and for one of ``kind`` with ``data``. Labels and
        the request stay; so do a ``network`` that is there, and the later end of a lease of the same holder. Returns
        the record with its new revision, or None, with nothing changed, when there is no such record: then somebody
        else changed it.
        """
        ...

    async def finish(self, record: RunRecord) -> bool:
        """Moves a live record of this revision to the record's terminal state.

        Its request is forgotten. Returns False, and changes nothing, when it was terminal already or somebody else
        changed it.
        """
        ...

    async def note_gone(self, run_id: str, gone_ms: float) -> None:
        """Adds ``gone_ms`` to the usage of an ended record, if it is there. Its revision stays, and nobody is told."""
        ...

    async def keep_network(self, run_id: str, network: dict[str, Any]) -> bool:
        """Replaces the connections of a live record, whatever its revision, which stays. False when it is not live."""
        ...

    async def renew(self, holder: str, until: float) -> int:
        """Prolongs all leases of a holder's live records; returns their number. Revisions stay."""
        ...

    async def get(self, run_id: str) -> RunRecord | None: ...

    async def request(self, run_id: str) -> str | None:
        """Returns the request that was kept for a live record."""
        ...

    async def events(self, run_id: str, after: int = 0, limit: int = 1000) -> Sequence[Event]:
        """Returns the first events with a number above ``after``, in their order."""
        ...

    async def by_key(self, principal: str, idempotency_key: str) -> RunRecord | None: ...

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
        """Returns records, newest first, without ``network`` and ``needs``, which can be large.

        ``principal`` is None for those of all; ``after`` is the last run id of the page before; each of ``labels`` must
        be among a record's own. ``tasks_of`` leaves the commands of one agent that are owned as TASK.
        ``services`` tells whether services are left, or the others.
        """
        ...

    async def unfinished(self) -> Sequence[RunRecord]:
        """All live records: what start-up has to attach or call lost."""
        ...

    async def sweep(self, older_than: float) -> int:
        """Delete terminal records that ended before ``older_than`` (UTC seconds); how many."""
        ...

    async def trim(self, most: int) -> int:
        """Deletes the oldest ended records of each principal above ``most``; returns their number."""
        ...

    def listen(self, listener: Listener) -> None:
        """Has ``listener`` called with each record that is inserted, changed or finished. Idempotent."""
        ...

    def ignore(self, listener: Listener) -> None:
        """Ends what :meth:`listen` began. Idempotent."""
        ...


class CallbackStore(Protocol):
    """The callbacks of tasks that have ended. Each is added with the end of its task, and goes with its record."""

    async def pending(self, limit: int, besides: Collection[str] = ()) -> Sequence[Callback]:
        """Returns those that are to be tried, by the time of the next try. Those to hosts ``besides`` are left out."""
        ...

    async def get(self, run_id: str) -> Callback | None: ...

    async def note(self, callback: Callback) -> None:
        """Replaces the callback of a task, where its record is still there."""
        ...


class JobStore(Protocol):
    async def insert(self, job: JobRecord, request: str, most: int) -> JobRecord:
        """Stores a job, durable when it returns. ``request`` is kept beside it until it has ended.

        Returns the job that is there already where one has its (principal, idempotency_key) and request_digest.
        Raises IdempotencyConflict for a key of another request, QuotaExceeded when the principal has ``most`` live
        jobs.
        """
        ...

    async def change(self, job: JobRecord) -> JobRecord | None:
        """Replaces a live job that still has the revision of ``job``. One in a terminal state ends it.

        Returns it with its new revision, or None, with nothing changed, when somebody else changed or ended it.
        """
        ...

    async def get(self, job_id: str) -> JobRecord | None: ...

    async def request(self, job_id: str) -> str | None:
        """Returns the request of a live job; None for others."""
        ...

    async def live(self) -> Sequence[JobRecord]:
        """Returns all live jobs, the oldest first."""
        ...

    async def list(self, scope: AgentScope, *, limit: int = 50, after: str | None = None) -> Sequence[JobRecord]:
        """Returns jobs of an agent, newest first. ``after`` is the last id of the page before.

        Raises InvalidInput for an id in ``after`` that names none of them.
        """
        ...

    async def sweep(self, older_than: float) -> int:
        """Deletes jobs that ended before ``older_than`` (UTC seconds); returns their number."""
        ...

    async def trim(self, most: int) -> int:
        """Deletes the oldest ended jobs of each principal above ``most``; returns their number."""
        ...
