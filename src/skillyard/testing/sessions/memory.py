"""The in-memory twin of the sessions port."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from skillyard.domain.checks import check_page, check_unicode
from skillyard.domain.work.session import SessionKey, SessionRecord, too_many


class MemorySessions:
    """A :class:`skillyard.ports.sessions.SessionStore`."""

    def __init__(self) -> None:
        self._sessions: dict[str, SessionRecord] = {}

    async def open(self, session: SessionRecord, most: int) -> SessionRecord:
        key = session.key
        for name, value in (("project", key.project), ("agent", key.agent), ("session_id", key.alias)):
            check_unicode(name, value)
        held = await self.find(key)
        if held is not None:
            return held
        if sum(each.principal == session.principal for each in await self.live()) >= most:
            raise too_many(most)
        self._sessions[session.session_id] = session
        return session

    async def change(self, session: SessionRecord) -> SessionRecord | None:
        held = self._sessions.get(session.session_id)
        if held is None or held.ended_at is not None or held.revision != session.revision:
            return None
        lease, before = session.lease, held.lease
        if lease and before and (lease.holder, lease.boot) == (before.holder, before.boot):
            lease = replace(lease, until=max(lease.until, before.until))
        changed = replace(session, revision=held.revision + 1, lease=lease, key=held.key, principal=held.principal)
        self._sessions[session.session_id] = changed
        return changed

    async def get(self, session_id: str) -> SessionRecord | None:
        return self._sessions.get(session_id)

    async def find(self, key: SessionKey) -> SessionRecord | None:
        return next((each for each in await self.live() if each.key == key), None)

    async def live(self) -> Sequence[SessionRecord]:
        return [each for each in self._sessions.values() if each.ended_at is None]

    async def list(
        self, project: str | None, agent: str | None, *, ended: bool = False, limit: int = 100
    ) -> Sequence[SessionRecord]:
        check_page(limit)
        found = [
            each
            for each in reversed(self._sessions.values())
            if project in (None, each.key.project) and agent in (None, each.key.agent)
        ]
        return [each for each in found if ended or each.ended_at is None][:limit]

    async def renew(self, holder: str, until: float) -> int:
        renewed = 0
        for each in await self.live():
            if each.lease is not None and each.lease.holder == holder:
                self._sessions[each.session_id] = replace(each, lease=replace(each.lease, until=until))
                renewed += 1
        return renewed

    async def sweep(self, older_than: float) -> int:
        over = [each.session_id for each in self._sessions.values() if each.ended_at and each.ended_at < older_than]
        for session_id in over:
            del self._sessions[session_id]
        return len(over)
