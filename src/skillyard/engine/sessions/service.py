"""Sessions of agents: what lends their sandboxes to runs, tells of them, and ends them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from skillyard.config.profiles import ProfileSettings
from skillyard.domain.errors import InvalidInput, SessionNotFound, SkillyardError, shown
from skillyard.domain.principal import AgentScope, Principal, Scope
from skillyard.domain.work.job import job_of
from skillyard.domain.work.session import USUAL_ALIAS, SessionKey, SessionRecord, SessionState, check_alias
from skillyard.engine.lending import Lender, Loan, Order, Queued
from skillyard.engine.observer import Fault, Observer
from skillyard.engine.runs.active import ActiveRuns
from skillyard.engine.runs.grant import Grant
from skillyard.engine.runs.plan import Plan
from skillyard.engine.secrets.redact import NOTHING, Redaction
from skillyard.engine.secrets.service import GivenSecret
from skillyard.engine.sessions.keeping import HARD, LEASE_S, LOST, Keeping, Use
from skillyard.engine.sessions.loan import SessionLoan
from skillyard.engine.sessions.moving import Mover
from skillyard.ports.clock import Clock
from skillyard.ports.secrets import SecretStore


class SessionService:
    """Lends sandboxes to runs: that of the session that a run names, or one of its own."""

    def __init__(
        self,
        keeping: Keeping,
        lender: Lender,
        secrets: SecretStore,
        active: ActiveRuns,
        clock: Clock,
        emit: Observer,
        profiles: Mapping[str, ProfileSettings],
        mover: Mover,
    ) -> None:
        self._keeping = keeping
        self.mover = mover
        self._secrets = secrets
        self._store = keeping.store
        self._settings = keeping.settings
        self.lender = lender
        self._active = active
        self._clock = clock
        self._emit = emit
        self._profiles = profiles

    def alias_of(self, named: str | None) -> str | None:
        """Returns the alias of a call's session; None for one that gets a sandbox of its own. Raises InvalidInput."""
        if named is not None:
            return check_alias(named)
        if self._settings.reuse_mode == "project_agent":
            return USUAL_ALIAS
        if self._settings.reuse_mode == "session":
            raise InvalidInput("session_id", "must be given: sessions.reuse_mode is 'session' here")
        return None

    def wait_ms_of(self, asked: int | None) -> int:
        """Returns how long a call waits for its session. Raises InvalidInput."""
        most = self._settings.max_wait_ms
        if asked is not None and asked > most:
            rule = f"must be at most {most}, which sessions.max_wait_ms says"
            raise InvalidInput("wait_ms", rule, shown(asked), limit="sessions.max_wait_ms", maximum=most)
        return self._settings.wait_ms if asked is None else asked

    def lend(self, plan: Plan, grant: Grant, order: Order, queued: Queued | None = None) -> Loan:
        """Returns the loan of a sandbox, to be entered. Its driver need not know which kind it is.

        Entering that of a session raises also Busy, QuotaExceeded and Forbidden (:meth:`Keeping.begin`).
        """
        request = plan.request
        if request.session is None:
            return self.lender.lend(order, queued)
        use = Use(
            _key(plan, request.session),
            plan.principal.name,
            plan.run_id,
            None if order.accepted else request.wait_ms,
            tuple(skill.name for skill in plan.skills),
            plan.trust.least,
            rights=bool(grant.given) or grant.network is not None,
            secrets=bool(grant.given),
            cell=request.is_cell,
            restart=request.restart,
            keeps=request.command is not None and request.command.service is not None,
            job=job_of(request.idempotency_key),
            life=request.life,
            quota=self._quota(plan.principal),
        )
        return self._of_session(order, use, queued)

    def _quota(self, principal: Principal) -> tuple[str, int] | None:
        section = self._profiles.get(principal.profile or "")
        most = None if section is None else section.quotas.sessions
        return None if most is None else (principal.profile or "", most)

    def resume(self, order: Order, key: SessionKey | None, idempotency_key: str | None) -> Loan:
        """Returns the loan of the sandbox in which an earlier server started a program."""
        if key is None:
            return self.lender.lend(order)
        return self._of_session(order, Use(key, order.tenant, order.key, None, job=job_of(idempotency_key)), None)

    async def redaction(self, session_id: str, given: Iterable[GivenSecret]) -> Redaction:
        """Returns the redaction of a run in a session, of all secrets that were given there.

        An earlier run may have written one into a file. Raises StoreFault.
        """
        known = await self.known_secrets(session_id)
        values = tuple(dict.fromkeys((*known, *[secret.value for secret in given])))
        if values != known:
            await self._secrets.keep(session_id, values)
        return Redaction(values) if values else NOTHING

    async def known_secrets(self, session_id: str) -> tuple[str, ...]:
        """Returns the values that runs of a session were given. Raises StoreFault."""
        return tuple(await self._secrets.kept(session_id) or ())

    def _of_session(self, order: Order, use: Use, queued: Queued | None) -> Loan:
        lender = self.lender
        return SessionLoan(order, lender.admission, lender.tasks, self._emit, queued, self._keeping, use)

    def holds(self, plan: Plan) -> bool:
        """Returns whether a plan is for a step of the job that holds its session."""
        alias, job = plan.request.session, job_of(plan.request.idempotency_key)
        return alias is not None and bool(job) and self._keeping.turns.holds(_key(plan, alias), job)

    def hold(self, key: SessionKey, job: str) -> None:
        """Holds a session for the steps of a job, whose turns come before all others then."""
        self._keeping.turns.hold(key, job)

    def let_go(self, key: SessionKey, job: str) -> None:
        """Ends the hold of a job, if it has it."""
        self._keeping.turns.let_go(key, job)

    async def times(self, alias: str | None, session_id: str | None) -> dict[str, Any]:
        """Returns what each answer says of its session: its alias and when it ends. Empty without one."""
        session = None if session_id is None else await self._store.get(session_id)
        if session is not None:
            return self.told_times(session)
        return {} if alias is None else {"session_id": alias, "expires_at": None, "idle_at": None}

    async def is_live(self, session_id: str) -> bool:
        """Returns whether a session has its files still."""
        session = await self._store.get(session_id)
        return session is not None and session.live and session.boot == self._clock.boot()

    def told_times(self, session: SessionRecord) -> dict[str, Any]:
        """Returns the alias and the ends, which are null where no clock runs."""
        ahead = self._clock.now() - self._clock.boottime()
        known = session.live and session.boot == self._clock.boot()
        return {
            "session_id": session.key.alias,
            "expires_at": session.hard_until + ahead if known and session.ready_at is not None else None,
            "idle_at": session.idle_until + ahead if known else None,
        }

    async def touch(self, scope: AgentScope, alias: str) -> dict[str, Any]:
        """Counts as a use of a session, if there is one. Returns what :meth:`times` says."""
        key = SessionKey(scope.project, scope.agent, check_alias(alias))
        session = await self._keeping.touched(key)
        if session is None:
            return {"session_id": alias, "expires_at": None, "idle_at": None}
        return self.told_times(session)

    async def list(
        self, principal: Principal, scope: AgentScope, *, everyone: bool, ended: bool, limit: int
    ) -> Sequence[SessionRecord]:
        """Returns sessions of an agent, or with ``everyone`` of all. Raises Forbidden."""
        if everyone:
            principal.require(Scope.ADMIN)
            return await self._store.list(None, None, ended=ended, limit=limit)
        return await self._store.list(scope.project, scope.agent, ended=ended, limit=limit)

    async def end(self, principal: Principal, scope: AgentScope, alias: str, reason: str) -> SessionRecord:
        """Ends a session and the call at work in it. Nothing of its sandbox is left then.

        Raises SessionNotFound for one that is not live, StoreFault, SandboxFault.
        """
        key = SessionKey(scope.project, scope.agent, check_alias(alias))
        session = await self._store.find(key)
        if session is None:
            raise SessionNotFound("session_id", f"the agent has no live session '{alias}'")
        return await self._keeping.ended_by(session, principal.name, reason or "a call ended it", self._cancel)

    async def _cancel(self, run_id: str, reason: str) -> None:
        if (active := self._active.get(run_id)) is not None:
            ending = active.ending()
            await active.cancel(reason)
            await ending

    async def keys(self) -> Collection[str]:
        """Returns the backends' keys of the sandboxes that live sessions have or get."""
        found = set()
        for session in await self._store.live():
            found.add(f"{session.session_id}-{session.stood or session.sandboxes - 1}")
            # Between calls nobody makes one: what has the next number was left by a server that died.
            if not session.stood or session.call is not None or self._keeping.turns.taken(session.key):
                found.add(session.backend_key)
        return found

    async def recover(self) -> None:
        """Settles the sessions of an earlier server, which is dead. Those whose runs go on are left to them."""
        for session in await self._store.live():
            await self._look(session, alone=True)

    async def reap(self) -> None:
        """Ends sessions that are over or lost, and those whose end failed before."""
        for session in await self._store.live():
            await self._look(session, alone=False)
        self.mover.wake()
        await self._store.sweep(self._clock.now() - self._settings.ended_ttl_s)

    async def renew(self) -> None:
        """Prolongs the leases of the sessions that runs of this server have."""
        try:
            await self._store.renew(self._keeping.holder, self._clock.boottime() + LEASE_S)
        except SkillyardError as error:
            self._emit(Fault("lease", error))

    async def _look(self, session: SessionRecord, *, alone: bool) -> None:
        try:
            now = await self._store.get(session.session_id)  # calls go on while one after the other is looked at
            if now is not None and now.live:
                await self._looked(now, alone=alone)
        except SkillyardError as error:  # the next look comes all the same
            self._emit(Fault("session", error, session.session_id))

    async def _looked(self, session: SessionRecord, *, alone: bool) -> None:
        keeping = self._keeping
        if session.kept:
            session = await keeping.without_over(session)
        if keeping.turns.taken(session.key):
            await self._drain(session)
        elif why := await keeping.lost(session):
            if await self._store.get(session.session_id) == session:  # else a call just gave it another sandbox
                await keeping.end(session, LOST, why)
        elif session.call is not None and not await keeping.has_run(session) and (alone or keeping.free(session)):
            await keeping.settle(session)
        elif session.call is not None:
            await self._drain(session)
        elif (due := keeping.due(session)) is not None:
            await keeping.end(session, *due)

    async def _drain(self, session: SessionRecord) -> None:
        """Lets no call begin behind the hard end, and cancels the last one after its grace."""
        now = self._clock.boottime()
        if session.boot != self._clock.boot() or now < session.hard_until:
            return
        why = f"the session '{session.key.alias}' is over: {session.hard_s:g} seconds (sessions.hard_ttl_s)"
        if session.state is SessionState.READY:
            await self._keeping.drain(session, HARD, why)
        if session.call is not None and now >= session.hard_until + self._settings.grace_s:
            await self._cancel(session.call, why)


def _key(plan: Plan, alias: str) -> SessionKey:
    return SessionKey(plan.principal.project, plan.request.agent or plan.principal.agent, alias)
