"""Sessions: one live record of a key, compare-and-set on the revision, ended is terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from skillyard.domain.work.session import SessionKey, SessionRecord


class SessionStore(Protocol):
    async def open(self, session: SessionRecord, most: int) -> SessionRecord:
        """Returns the live session of the key of ``session``, which is stored where there is none.

        Raises QuotaExceeded when the principal of ``session`` has ``most`` live sessions already, and it would be one
        more.
        """
        ...

    async def change(self, session: SessionRecord) -> SessionRecord | None:
        """Replaces a live session that still has the revision of ``session``.

        One in the state ENDED ends it.

        Returns it with its new revision, or None, with nothing changed, when somebody else changed or ended it.
        """
        ...

    async def get(self, session_id: str) -> SessionRecord | None: ...

    async def find(self, key: SessionKey) -> SessionRecord | None:
        """Returns the live session of a key."""
        ...

    async def live(self) -> Sequence[SessionRecord]:
        """Returns all live sessions, the oldest first."""
        ...

    async def list(
        self, project: str | None, agent: str | None, *, ended: bool = False, limit: int = 100
    ) -> Sequence[SessionRecord]:
        """Returns sessions, newest first; None stands for every project or agent. ``ended`` adds those that ended."""
        ...

    async def renew(self, holder: str, until: float) -> int:
        """Prolongs all leases of a holder's live sessions; returns their number. Revisions stay."""
        ...

    async def sweep(self, older_than: float) -> int:
        """Deletes sessions that ended before ``older_than`` (UTC seconds); returns their number."""
        ...
