"""New sandboxes for the files of sessions, at a call or while none uses them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from skillyard.config.policy import PolicySettings, SandboxSettings
from skillyard.domain.errors import QuotaExceeded, SandboxGone, SkillyardError
from skillyard.domain.sandbox.spec import EnvironmentRef, SandboxSpec, make_spec
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.session import SessionKey, SessionRecord, SessionState
from skillyard.engine.backends import Backends, Offer
from skillyard.engine.lending import PATIENCE_S, make_sandbox
from skillyard.engine.observer import Fault, Observer
from skillyard.engine.sessions.keeping import Keeping
from skillyard.engine.sessions.sandbox import fit_of, kept_spec, move
from skillyard.engine.tasks import Tasks
from skillyard.ports.sandbox import Sandbox

MOVE_S = 30.0
"""How long one move may take. Calls for that session wait meanwhile."""


async def renew(
    keeping: Keeping,
    session: SessionRecord,
    offer: Offer,
    spec: SandboxSpec,
    old: Sandbox | None,
    space_mb: int,
    emit: Observer,
    *,
    idle: bool = False,
) -> tuple[SessionRecord, Sandbox]:
    """Returns a session with a new sandbox, which has the files of the old one; that is ended.

    With ``idle`` no call uses it: it is cleared, and this does not count as a use. Raises SandboxGone when the session
    was ended, QuotaExceeded for files that do not fit, ProtectionMissing, SandboxFault.
    """
    session = await keeping.makes(session, space_mb)
    made = await make_sandbox(offer, spec, session.backend_key)
    try:
        if old is not None:
            await move(old, made)
        if idle:
            offer.check_walls(made)
            await keeping.clear(session, made)
        session = await keeping.stands(session, made, offer.name, fit_of(offer, spec), space_mb, used=not idle)
    except BaseException:
        keeping.cleared.pop(session.session_id, None)
        await offer.backend.destroy(made.handle)
        raise
    if old is not None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await (await keeping.offer(session.isolation)).backend.destroy(old.handle)
        except (SkillyardError, TimeoutError) as error:  # the sweep will find it
            emit(Fault("destroy", error, session.session_id))
    return session, made


class Mover:
    """Moves idle sessions out of sandboxes that another configuration of their backend made.

    It has one such sandbox at a time. A session that it cannot move is moved by its next call.
    """

    def __init__(
        self,
        keeping: Keeping,
        backends: Backends,
        emit: Observer,
        limits: Limits,
        policy: PolicySettings,
        places: SandboxSettings,
        environment: EnvironmentRef,
    ) -> None:
        """``limits``, ``places`` and ``environment`` are those of most calls."""
        self._keeping, self._emit, self._limits, self._environment = keeping, emit, limits, environment
        self._grouped, self._closed = policy.separate_principals, places.read_only
        self._tasks = Tasks()
        self._due = asyncio.Event()
        self._busy: set[SessionKey] = set()
        """Sessions that have an earlier configuration still, and are in use."""
        self._left: dict[str, str] = {}
        """Sessions that are left to their next call, each with the revision to which it could not be moved."""
        backends.renewed = self.wake
        keeping.turns.left = self._turn_left

    def wake(self) -> None:
        """Has it look at all sessions soon."""
        self._due.set()

    def begin(self) -> None:
        """Works from now on, up to :meth:`close`."""
        self._tasks.spawn(self._work(), "mover of sessions")

    async def close(self) -> None:
        """Ends the work. A session that is being moved keeps one of both sandboxes."""
        await self._tasks.close()

    async def look(self) -> None:
        """Moves all sessions that are idle. Raises StoreFault."""
        self._busy.clear()
        live = await self._keeping.store.live()
        self._left = {one.session_id: self._left[one.session_id] for one in live if one.session_id in self._left}
        for session in live:
            try:
                await self._look(session)
            except SandboxGone:  # the reaper ends it
                continue
            except (SkillyardError, TimeoutError) as error:  # a later look, or its next call, tries again
                self._emit(Fault("session", error, session.session_id))

    async def _work(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self.look()
            except SkillyardError as error:
                self._emit(Fault("session", error))

    def _turn_left(self, key: SessionKey) -> None:
        if key in self._busy:
            self.wake()

    async def _look(self, session: SessionRecord) -> None:
        keeping = self._keeping
        if session.sandbox is None or session.state is not SessionState.READY or keeping.is_of_another_boot(session):
            return
        offer = await keeping.offer(session.isolation)
        revision = session.fit.partition(":")[0]
        if offer.refusal is not None or offer.revision in (revision, self._left.get(session.session_id)):
            return
        with keeping.turns.aside(session.key) as free:
            now = await keeping.store.get(session.session_id) if free else None
            if now is None or now.call is not None or now.kept:
                self._busy.add(session.key)
            elif now.sandbox == session.sandbox and now.state is SessionState.READY and keeping.due(now) is None:
                await self._move(now, offer)

    async def _move(self, session: SessionRecord, offer: Offer) -> None:
        try:
            async with asyncio.timeout(MOVE_S):
                old = await offer.backend.attach(session.sandbox or "")
                spec = self._idle_spec(offer, session)
                await renew(self._keeping, session, offer, spec, old, session.disk_mb, self._emit, idle=True)
        except (TimeoutError, QuotaExceeded):  # it has too many files for that
            self._left[session.session_id] = offer.revision
            raise

    def _idle_spec(self, offer: Offer, session: SessionRecord) -> SandboxSpec:
        """Returns the sandbox of an idle session: that of most calls, with room for its files."""
        files_mb = session.disk_mb - (self._limits.memory_mb if session.interpreter else 0)
        limits = replace(self._limits, disk_mb=max(self._limits.disk_mb, files_mb))
        tenant = session.principal
        group = tenant if self._grouped else ""
        return kept_spec(make_spec(offer.demand, limits, self._environment, (), group, tenant, self._closed))
