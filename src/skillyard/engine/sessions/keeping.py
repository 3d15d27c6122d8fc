"""The records of live sessions, and each step of one: begun, ready, released, ended.

Every step is written down before it is taken, by compare-and-set. So whatever dies, the next server knows what to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from skillyard.config.sessions import SessionSettings
from skillyard.domain.errors import Forbidden, QuotaExceeded, SandboxCutOff, SandboxFault, SandboxGone, SkillyardError
from skillyard.domain.work.record import Ending, Lease
from skillyard.domain.work.session import SessionKey, SessionRecord, SessionState, too_large, too_many_of_profile
from skillyard.engine.backends import Backends, Offer
from skillyard.engine.lending import PATIENCE_S
from skillyard.engine.observer import Fault, Observer
from skillyard.engine.sessions.interpreter import answers, end
from skillyard.engine.sessions.sandbox import clear, destroy_all, end_programs
from skillyard.engine.sessions.turns import Turns
from skillyard.ports.clock import Clock, Ids
from skillyard.ports.records import RecordStore
from skillyard.ports.sandbox import Sandbox
from skillyard.ports.secrets import SecretStore
from skillyard.ports.sessions import SessionStore
from skillyard.values import dataclass

LEASE_S = 90.0
IDLE, HARD, LOST, SERVER = "idle", "hard", "lost", "server"
"""Those that end a session beside principals."""
_TRIES = 8
SOON_S = 2.0
"""How long a call waits for the end of a program that its run left."""
_SHARE = 0.75
"""Of the space of all sessions, that one principal may have."""
_GONE = "its sandbox ended while it was not used"
_UNMADE = "its server ended while it was made"
_EMPTY = "its first call ended before it had a sandbox"
_REBOOTED = "the machine was restarted"

Change = Callable[[SessionRecord], SessionRecord]
Cancel = Callable[[str, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Use:
    """One run's use of a session. ``least`` tells why the run gets the least rights; ``rights`` whether it has more.

    ``secrets`` says that secrets are among them. ``wait_ms`` is None for a run that was promised already, and waits for
    any time. ``keeps`` says that its program goes on while others use the session.
    """

    key: SessionKey
    principal: str
    run_id: str
    wait_ms: float | None
    skills: tuple[str, ...] = ()
    least: str = ""
    rights: bool = False
    secrets: bool = False
    keeps: bool = False
    cell: bool = False
    """Whether its code runs in the interpreter of the session."""
    restart: bool = False
    """Whether that is a new one."""
    job: str = ""
    """The job whose step the run is."""
    life: str = ""
    """The only session that will do, where it is not any one of the key."""
    quota: tuple[str, int] | None = None
    """The profile of the token and the number of sessions that it allows."""


class Keeping:
    """Keeps sessions under leases of ``holder``."""

    def __init__(
        self,
        store: SessionStore,
        records: RecordStore,
        secrets: SecretStore,
        backends: Backends,
        clock: Clock,
        ids: Ids,
        emit: Observer,
        settings: SessionSettings,
        holder: str,
    ) -> None:
        self.store = store
        self.turns = Turns(settings.waiting)
        self.settings = settings
        self._records = records
        self._secrets = secrets
        self._backends = backends
        self._clock = clock
        self._ids = ids
        self._emit = emit
        self.holder = holder
        self.cleared: dict[str, Ending] = {}
        """The ending of the program that cleared a session last: what its sandbox had used by then."""

    async def begin(self, use: Use) -> SessionRecord:
        """Returns the session, which the run has from now on. The caller has its turn.

        Raises Busy, QuotaExceeded, Forbidden for a run with rights where skills without them left files, and
        SandboxGone where the only session that will do has ended.
        """
        for _ in range(_TRIES):
            session = await self._open(use)
            if session.call == use.run_id:
                return session
            if (over := await self._over(session)) is not None:
                await self.end(session, *over)
                continue
            if session.call is not None:
                await self._settle_left(session)
                continue
            session = await self.without_over(session, SOON_S)
            kept = session.kept
            try:
                self._refuse_mixing(session, use)
            except Forbidden:
                await self._end_empty(session)
                raise
            taken = replace(
                _with_interpreter(session, use) if use.cell else session,
                kept={**kept, use.run_id: use.skills} if use.keeps else kept,
                call=use.run_id,
                lease=self.lease(),
                untrusted=session.untrusted or use.least,
                skills=tuple(sorted({*session.skills, *use.skills})),
            )
            if (mine := await self.store.change(taken)) is not None:
                return mine
        raise self.turns.busy(use.key)

    async def _open(self, use: Use) -> SessionRecord:
        """Returns the live session, a new one where there is none. Raises QuotaExceeded, SandboxGone."""
        if use.life:
            found = await self.store.find(use.key)
            if found is None or found.session_id != use.life:
                raise SandboxGone("the session has ended in which it was to run")
            return found
        most = self.settings.most_each
        if use.quota is None or use.quota[1] >= most:
            return await self.store.open(self._new(use), most)
        try:
            return await self.store.open(self._new(use), use.quota[1])
        except QuotaExceeded:
            raise too_many_of_profile(*use.quota) from None

    async def stands(
        self, session: SessionRecord, sandbox: Sandbox, isolation: str, fit: str, disk_mb: int, *, used: bool
    ) -> SessionRecord:
        """Notes the sandbox of a session, which is ready with the first one. Raises SandboxGone when it was ended."""
        now = self._clock.boottime()

        def stood(held: SessionRecord) -> SessionRecord:
            state = SessionState.READY if held.state is SessionState.CREATING else held.state
            ready_at = now if held.ready_at is None else held.ready_at
            return replace(
                held, sandbox=sandbox.handle, isolation=isolation, fit=fit, disk_mb=disk_mb,
                state=state, ready_at=ready_at, used_at=now if used else held.used_at, stood=session.sandboxes,
            )  # fmt: skip

        return await self._changed(session, stood)

    async def makes(self, session: SessionRecord, disk_mb: int, sandboxes: int = 1) -> SessionRecord:
        """Notes that sandboxes are about to be made, and the space of files and interpreter.

        That is memory as long as the session lives. Raises SandboxGone when the session was ended, QuotaExceeded where
        all sessions would have too much of it.
        """
        made = await self._changed(
            session, lambda held: replace(held, sandboxes=held.sandboxes + sandboxes, disk_mb=disk_mb)
        )  # noted before it is counted, so that two at once see each other
        live = [one for one in await self.store.live() if one.boot == made.boot]
        most_mb, mine = self.settings.disk_mb, [one for one in live if one.principal == made.principal]
        over = sum(one.disk_mb for one in live) > most_mb
        if over or (len(mine) > 1 and sum(one.disk_mb for one in mine) > most_mb * _SHARE):
            await self._changed(made, lambda held: replace(held, disk_mb=session.disk_mb))
            raise too_large(most_mb)
        return made

    async def interprets(self, session: SessionRecord, use: Use) -> SessionRecord:
        """Notes that a new interpreter takes the place of the one that the session has. Raises SandboxGone."""
        name, skills = interpreter_of(use), tuple(sorted(use.skills))
        return await self._changed(session, lambda held: replace(held, interpreter=name, interpreter_skills=skills))

    async def kept(self, use: Use) -> SessionRecord | None:
        """Returns the session in which a run's program goes on while others use it, if any."""
        session = await self.store.find(use.key)
        return session if session is not None and use.run_id in session.kept else None

    async def forget(self, session: SessionRecord, run_id: str) -> None:
        """Notes that a kept program has ended."""
        now = self._clock.boottime()

        def forgotten(held: SessionRecord) -> SessionRecord:
            kept = {id: skills for id, skills in held.kept.items() if id != run_id}
            return replace(held, kept=kept, used_at=now)

        with suppress(SandboxGone):
            await self._changed(session, forgotten)

    async def without_over(self, session: SessionRecord, patience_s: float = PATIENCE_S) -> SessionRecord:
        """Returns a session without the kept programs whose runs are over.

        One that may be at work all the same, since nobody could end it in time, is ended now, and stays until that is
        sure.
        """
        for run_id in session.kept:
            record = await self._records.get(run_id)
            if (record is None or not record.status.live) and await self._end_kept(session, run_id, patience_s):
                kept = {id: skills for id, skills in session.kept.items() if id != run_id}
                session = replace(session, kept=kept)
        return session

    async def _end_kept(self, session: SessionRecord, run_id: str, patience_s: float) -> bool:
        try:
            async with asyncio.timeout(patience_s):
                await end_programs(await self._attached(session), (run_id,))
        except SandboxGone as error:
            return not isinstance(error, SandboxCutOff)
        except (SkillyardError, TimeoutError) as error:  # a later look tries again
            self._emit(Fault("session", error, session.session_id))
            return False
        return True

    async def release(self, session: SessionRecord) -> None:
        """Notes that its run is over and its sandbox cleared. A session that drains or has no sandbox ends with it."""
        now = self._clock.boottime()

        def freed(held: SessionRecord) -> SessionRecord:
            runs = held.runs + (held.sandbox is not None)
            return replace(held, call=None, lease=None, used_at=now, runs=runs)

        with suppress(SandboxGone):
            session = await self._changed(session, freed)
            if session.state is SessionState.DRAINING:
                await self.end(session, session.ended_by, session.reason)
            await self._end_empty(session)

    async def _end_empty(self, session: SessionRecord) -> None:
        """Ends a session that has nothing to keep: it would count against the most of its principal."""
        if session.state is not SessionState.CREATING or session.call is not None:
            return
        drained = replace(session, state=SessionState.DRAINING, ended_by=SERVER, reason=_EMPTY)
        if (session := await self.store.change(drained) or session).state is SessionState.DRAINING:
            await self.end(session, SERVER, _EMPTY)

    async def end(self, session: SessionRecord, by: str, reason: str) -> bool:
        """Ends a session: lets no call begin, destroys its sandbox, then writes that down.

        Returns False where its sandbox could not be destroyed: a later look tries again.
        """

        def ended(held: SessionRecord) -> SessionRecord:
            return replace(held, state=SessionState.ENDED, ended_at=self._clock.now(), call=None, lease=None)

        try:
            session = await self.drain(session, by, reason)
            await self._destroy(session)
            await self._changed(session, ended)
            if session.call is None:  # else its run may be gone on with, and redacted: the sweep forgets them
                await self._secrets.forget(session.session_id)
        except SandboxGone:
            return True  # somebody else ended it
        except (SkillyardError, TimeoutError) as error:
            self._emit(Fault("session", error, session.session_id))
            return False
        self.cleared.pop(session.session_id, None)
        return True

    async def drain(self, session: SessionRecord, by: str, reason: str) -> SessionRecord:
        """Lets no further call begin. Raises SandboxGone when it has ended."""

        def draining(held: SessionRecord) -> SessionRecord:
            told = (held.ended_by, held.reason) if held.state is SessionState.DRAINING else (by, reason)
            return replace(held, state=SessionState.DRAINING, ended_by=told[0], reason=told[1])

        return await self._changed(session, draining)

    async def ended_by(self, session: SessionRecord, by: str, reason: str, cancel: Cancel) -> SessionRecord:
        """Returns a session that somebody ended. Its run is cancelled first. Raises SandboxFault, to be tried again."""
        with suppress(SandboxGone):
            session = await self.drain(session, by, reason)
            for run_id in dict.fromkeys((session.call, *session.kept)):
                if run_id is not None:
                    await cancel(run_id, f"the session '{session.key.alias}' is ended: {reason}")
        await self.turns.enter(session.key, None, None)
        try:
            done = await self.end(session, by, reason)
        finally:
            self.turns.leave(session.key)
        found = await self.store.get(session.session_id)
        if not done or found is None or found.live:
            raise SandboxFault("the sandbox of the session could not be ended; it will be tried again")
        return found

    async def touched(self, key: SessionKey) -> SessionRecord | None:
        """Returns the live session of a key, used now. None where there is none."""
        session = await self.store.find(key)
        if session is None or session.boot != self._clock.boot() or self.due(session) is not None:
            return None
        with suppress(SandboxGone):
            return await self._changed(session, lambda held: replace(held, used_at=self._clock.boottime()))
        return None

    async def settle(self, session: SessionRecord) -> None:
        """Clears and frees a session whose run is over, which its server could not do."""
        try:
            sandbox = await self._attached(session)
            async with asyncio.timeout(PATIENCE_S):
                call = session.call or ""
                await end_programs(sandbox, (call, f"{call}-left"))
                if session.interpreter and not await answers(sandbox, session.interpreter, f"{call}-asks-left"):
                    await end(sandbox, session.interpreter)
                await self.clear(session, sandbox)
        except SandboxCutOff as error:  # a later look tries again
            self._emit(Fault("session", error, session.session_id))
        except SandboxGone:
            await self.end(session, LOST, _GONE)
        except (SkillyardError, TimeoutError) as error:
            await self.end(session, SERVER, str(error) or "it could not be cleared in time")
        else:
            await self.release(session)

    async def clear(self, session: SessionRecord, sandbox: Sandbox) -> None:
        """Raises SandboxFault for a sandbox that cannot be cleared."""
        # The id is new each time: an earlier server may have cleared it for the same run.
        ending = await clear(sandbox, f"clear-{self._ids.run()}")
        self.cleared[session.session_id] = ending

    async def lost(self, session: SessionRecord) -> str:
        """Returns why the sandbox of a session is not there any more; empty where it is.

        Raises SandboxFault where nobody can tell.
        """
        if self.is_of_another_boot(session):
            return _REBOOTED
        if session.sandbox is None:
            return _UNMADE if session.call else ""
        try:
            await (await self.offer(session.isolation)).backend.attach(session.sandbox)
        except SandboxCutOff as error:
            raise SandboxFault(error.message) from error
        except SandboxGone:
            return _GONE
        return ""

    def is_of_another_boot(self, session: SessionRecord) -> bool:
        """Returns whether its sandbox ended with the machine."""
        return session.boot != self._clock.boot()

    def free(self, session: SessionRecord) -> bool:
        """Returns whether no other server has it now, by its lease."""
        lease = session.lease
        if lease is None or lease.holder == self.holder:
            return True
        return not lease.held(self._clock.boot(), self._clock.boottime())

    async def has_run(self, session: SessionRecord) -> bool:
        """Returns whether its run is at work, or will be gone on with."""
        record = None if session.call is None else await self._records.get(session.call)
        return record is not None and record.status.live

    async def offer(self, isolation: str) -> Offer:
        """Returns the backend of a session's sandbox. Raises SandboxGone when it is not configured any more."""
        offer = await self._backends.named(isolation)
        if offer is None:
            raise SandboxGone(f"the isolation '{isolation}' that it had is not configured any more")
        return offer

    def due(self, session: SessionRecord) -> tuple[str, str] | None:
        """Returns who ends a session that has no run, and why, when its time is over."""
        now = self._clock.boottime()
        if session.state is SessionState.DRAINING:
            return session.ended_by, session.reason
        if now >= session.hard_until:
            return HARD, f"its {session.hard_s:g} seconds are over (sessions.hard_ttl_s)"
        if session.call is None and not session.kept and now >= session.idle_until:
            return IDLE, f"nobody used it for {session.idle_s:g} seconds (sessions.idle_ttl_s)"
        return None

    def left_ms(self, session: SessionRecord) -> int:
        """Returns the time up to the hard end of a session, and the grace of its last call."""
        left_s = session.hard_until + self.settings.grace_s - self._clock.boottime()
        return max(1000, round(left_s * 1000))

    def lease(self) -> Lease:
        """Returns a lease of this server from now on."""
        return Lease(self.holder, self._clock.boot(), self._clock.boottime() + LEASE_S)

    async def _over(self, session: SessionRecord) -> tuple[str, str] | None:
        if self.is_of_another_boot(session):
            return LOST, _REBOOTED
        if session.call is None and (due := self.due(session)) is not None:
            return due
        if session.sandbox is None and session.call is None:
            return None
        if session.call is not None and await self.has_run(session):
            return None
        try:
            why = await self.lost(session)
        except SandboxFault:  # its keeper is just ending: a later call knows
            raise self.turns.busy(session.key) from None
        return (LOST, why) if why else None

    async def _settle_left(self, session: SessionRecord) -> None:
        """Raises Busy for a session whose run is at work."""
        if not self.free(session) or await self.has_run(session):
            raise self.turns.busy(session.key)
        await self.settle(session)

    def _refuse_mixing(self, session: SessionRecord, use: Use) -> None:
        """Raises Forbidden where files of one skill may steer the programs of another."""
        others = sorted({name for skills in session.kept.values() for name in skills} - {*use.skills})
        if use.rights and (use.keeps or others):
            rule = "session_id: a service gets no secrets and no network in a session"
            if others:
                rule = f"session_id: a service of {', '.join(others)} works in the session '{use.key.alias}'"
                rule += ", and this run would get secrets or a network beside it"
            raise Forbidden(f"{rule}; use another session")
        if use.secrets and session.kept:  # its output is not redacted of what was given behind its start
            rule = f"session_id: a service works in the session '{use.key.alias}', and this run would get secrets"
            raise Forbidden(f"{rule}; use another session")
        self._refuse_beside_interpreter(session, use)
        if session.untrusted and use.rights:
            rule = f"session_id: files of skills without approval are in the session '{use.key.alias}', and this run"
            remedy = f"would get secrets or a network: {session.untrusted}, or use another session"
            raise Forbidden(f"{rule} {remedy}")

    def _refuse_beside_interpreter(self, session: SessionRecord, use: Use) -> None:
        """Raises Forbidden where code of earlier cells may reach what is given to this run."""
        if not session.interpreter or use.restart:
            return
        rule, what = f"session_id: the session '{use.key.alias}' has a Python interpreter", ""
        if others := sorted({*session.interpreter_skills} - {*use.skills}):
            what = f", in which {', '.join(others)} worked" if use.rights else ""
        if what or (use.secrets and not use.cell):
            given = "secrets" if use.secrets else "a network"
            raise Forbidden(f"{rule}{what}, and this run would get {given} beside it; use another session")

    def _new(self, use: Use) -> SessionRecord:
        clock, settings = self._clock, self.settings
        return SessionRecord(
            session_id=self._ids.session(),
            key=use.key,
            principal=use.principal,
            created_at=clock.now(),
            boot=clock.boot(),
            used_at=clock.boottime(),
            idle_s=settings.idle_ttl_s,
            hard_s=settings.hard_ttl_s,
        )

    async def _attached(self, session: SessionRecord) -> Sandbox:
        if why := await self.lost(session):
            raise SandboxGone(why)
        assert session.sandbox is not None, "it is not lost"
        return await (await self.offer(session.isolation)).backend.attach(session.sandbox)

    async def _destroy(self, session: SessionRecord) -> None:
        """Ends every sandbox that was made for a session, also those that no record has. Raises SandboxFault."""
        async with asyncio.timeout(PATIENCE_S):
            own = None
            with suppress(SandboxGone):
                own = (await self.offer(session.isolation)).backend
            await destroy_all(self._backends, f"{session.session_id}-", own, session.sandbox)

    async def _changed(self, session: SessionRecord, change: Change) -> SessionRecord:
        """Returns the session after ``change``. Raises SandboxGone when it was ended."""
        held: SessionRecord | None = session
        for _ in range(_TRIES):
            if held is None or not held.live:
                raise SandboxGone(_why(held))
            changed = await self.store.change(change(held))
            if changed is not None:
                return changed
            held = await self.store.get(session.session_id)
        raise SandboxFault("the record of the session changes all the time")


def interpreter_of(use: Use) -> str:
    """Returns the name of the interpreter that the cell of a run starts."""
    return f"python-{use.run_id}"


def _with_interpreter(session: SessionRecord, use: Use) -> SessionRecord:
    skills = tuple(sorted({*session.interpreter_skills, *use.skills}))
    return replace(session, interpreter=session.interpreter or interpreter_of(use), interpreter_skills=skills)


def _why(session: SessionRecord | None) -> str:
    if session is None:
        return "the session is not there any more"
    return f"the session was ended by {session.ended_by}: {session.reason}"
