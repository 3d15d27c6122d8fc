"""The loan of a session's sandbox to one run. To its driver it is like that of a sandbox made for the run alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from skillyard.domain.errors import InvalidInput, SandboxCutOff, SandboxFault, SandboxGone, SkillyardError
from skillyard.domain.sandbox.spec import Start, cell_request
from skillyard.domain.work.record import Ending, Outcome, Usage
from skillyard.domain.work.session import SessionRecord, SessionState
from skillyard.engine.lending import PATIENCE_S, Loan, Order, Queued
from skillyard.engine.observer import Fault, Observer
from skillyard.engine.sessions import interpreter
from skillyard.engine.sessions.keeping import LOST, SERVER, Keeping, Use, interpreter_of
from skillyard.engine.sessions.moving import renew
from skillyard.engine.sessions.sandbox import (
    INPUTS,
    bring,
    clear_behind,
    end_programs,
    fit_of,
    kept_spec,
    trusting,
)
from skillyard.engine.shares import Admission
from skillyard.engine.tasks import Tasks
from skillyard.ports.sandbox import Sandbox

RENEWED_AFTER = 200
"""Runs after which a session gets a new sandbox, into which its files move."""
RENEWED_WITH_NAMES = 2000
"""The same for a session with an interpreter, whose names are lost with the sandbox."""
_INTERRUPTED = (Outcome.TIMEOUT, Outcome.CANCELLED, Outcome.OUTPUT)


class SessionLoan(Loan):
    """The block begins with the run's turn in the session. When it is left, the sandbox is cleared and stays."""

    def __init__(
        self,
        order: Order,
        admission: Admission,
        tasks: Tasks,
        emit: Observer,
        queued: Queued | None,
        keeping: Keeping,
        use: Use,
    ) -> None:
        super().__init__(order, admission, tasks, emit, queued)
        self._keeping = keeping
        self._use = use
        self._held: SessionRecord | None = None
        self._before: Ending | None = None
        """The ending that the sandbox told last, before this run."""
        self._reused = False
        """Whether the sandbox was made for an earlier run."""
        self._began: float | None = None
        self._standing: asyncio.Task[Sandbox] | None = None
        self.keeps = use.keeps
        self._handed_back = False
        """Whether the program goes on without the session's turn."""
        self._ending: Ending | None = None

    async def __aenter__(self) -> Loan:
        """Raises also what :meth:`Keeping.begin` raises."""
        if self._order.handle is not None and (held := await self._keeping.kept(self._use)) is not None:
            self.keeps = True
            if held.call != self._use.run_id:
                self._held, self.session, self._handed_back = held, held.session_id, True
                return await super().__aenter__()
        await self._keeping.turns.enter(self._use.key, self._use.wait_ms, self._use.job)
        try:
            self._held = await self._tasks.shielded(self._begin(), f"session of {self._use.run_id}")
            self.session = self._held.session_id
            return await super().__aenter__()
        except BaseException:
            await self._tasks.shielded(self._turned_away(), f"end of {self._use.run_id}")
            raise

    async def _begin(self) -> SessionRecord:
        self._held = await self._keeping.begin(self._use)
        return self._held

    async def _turned_away(self) -> None:
        try:
            if self._held is not None and self._order.handle is None:
                await self._released(self._held)
        finally:
            self._keeping.turns.leave(self._use.key)

    async def __aexit__(self, *left: object) -> None:
        try:
            await super().__aexit__(*left)
        finally:
            if not self._handed_back:
                self._keeping.turns.leave(self._use.key)

    def launch(self, first: Start) -> None:
        """Does nothing: the program starts when the sandbox is as this run needs it."""

    async def open(self, guest: Mapping[str, Any]) -> tuple[Sandbox, Mapping[str, Any]]:
        """As for a sandbox of the run's own. Where the one that is there does not fit, its files move to a new one.

        Raises also QuotaExceeded for files that do not fit into the new one.
        """
        network = self.network
        spec = self._spec if network is None else await network.join(self._spec)
        self._spec = kept_spec(spec)
        self._standing = self._tasks.spawn(self._stand(), f"session of {self._use.run_id}")
        self.sandbox = sandbox = await asyncio.shield(self._standing)
        self.enforced = dict(sandbox.enforced)
        self.guarantees = self._order.offer.check_walls(sandbox)
        self.image = str(getattr(sandbox, "image", ""))
        if await bring(sandbox, spec.mounts):
            guest = {**guest, "blob_root": INPUTS}
        if self._use.cell:
            guest = await self._in_interpreter(sandbox, guest)
        if network is not None:
            guest = trusting(await network.enter(sandbox, guest, reused=self._reused))
        self._began = asyncio.get_running_loop().time()
        if not self.keeps:
            clear_behind(sandbox, self._use.run_id)
        return sandbox, guest

    async def _in_interpreter(self, sandbox: Sandbox, guest: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the request of a cell for the interpreter, which stands then."""
        session, use, keeping = self._session, self._use, self._keeping
        name, state, reason = interpreter_of(use), interpreter.STARTED, ""
        if session.interpreter != name:
            state, asked = interpreter.KEPT, interpreter.ASKED if use.restart else ""
            if asked or not await interpreter.answers(sandbox, session.interpreter, f"{name}-asks"):
                state, reason = interpreter.RESTARTED, await interpreter.end(sandbox, session.interpreter, asked)
                self._held = session = await keeping.interprets(session, use)
        if state != interpreter.KEPT:
            await interpreter.start(sandbox, guest, name, keeping.left_ms(session))
        self.interpreter = {"state": state, "reason": reason, "lost": ""}
        return cell_request(guest, session.interpreter)

    async def _settle_interpreter(self, sandbox: Sandbox) -> str:
        """Returns why the names are lost; empty where the interpreter goes on idly."""
        name = self._session.interpreter
        if await interpreter.answers(sandbox, name, f"{interpreter_of(self._use)}-asks-again"):
            return ""
        why = await interpreter.end(sandbox, name)
        interrupted = self._ending is not None and self._ending.outcome in _INTERRUPTED
        return interpreter.UNHEEDED if interrupted else why

    async def _stand(self) -> Sandbox:
        """Returns the session's sandbox as this run needs it."""
        session = self._session
        old = None if session.sandbox is None else await self._attach(session)
        # The keeper keeps what each program wrote as long as the sandbox.
        renewed_after = RENEWED_WITH_NAMES if session.interpreter else RENEWED_AFTER
        worn = session.runs % renewed_after == renewed_after - 1
        others = session.kept.keys() - {self._use.run_id}
        if old is not None and (others or not worn) and self._fits(session):
            self._before, self._reused = self._keeping.cleared.get(session.session_id), True
            if session.disk_mb < self._space_mb:  # this is its first cell
                self._held = await self._keeping.makes(session, self._space_mb, sandboxes=0)
            return old
        if old is not None and others:
            rule = (
                f"has a service at work ({', '.join(sorted(others))}), which stays in its sandbox, and this call needs"
            )
            raise InvalidInput(
                "session_id",
                f"{rule} another one: other skills, limits, isolation or configuration of it; end it first",
            )
        self._held, made = await renew(
            self._keeping, session, self._order.offer, self._spec, old, self._space_mb, self._emit
        )
        return made

    def _fits(self, session: SessionRecord) -> bool:
        # One whose ports can be reached serves a call, too, that opens none.
        specs = self._spec, replace(self._spec, forwarding=True)
        return any(session.fit == fit_of(self._order.offer, spec) for spec in specs)

    async def _attach(self, session: SessionRecord) -> Sandbox:
        assert session.sandbox is not None, "it has one"
        offer = await self._keeping.offer(session.isolation)
        return await offer.backend.attach(session.sandbox)

    async def hand_back(self) -> None:
        """Lets others use the session while the program that it keeps goes on. The sandbox is cleared of all else.

        Raises nothing. Where it could not be cleared the session has ended, and the program with it.
        """
        if self.keeps and not self._handed_back:
            await self._tasks.shielded(self._hand_back(), f"session of {self._use.run_id}")

    async def _hand_back(self) -> None:
        await self._released(self._session)
        self._handed_back = True
        self._keeping.turns.leave(self._use.key)

    async def attach(self) -> Sandbox:
        sandbox = await super().attach()
        if self.keeps:
            await self.hand_back()
        self._before = self._keeping.cleared.get(self._session.session_id)
        return sandbox

    @property
    def _came_to_its_end(self) -> bool:
        return self._ending is not None and interpreter.orderly(self._ending)

    def own(self, ending: Ending) -> Ending:
        self._ending = ending
        used = ending.usage
        before = self._before.usage if used.whole and self._before is not None else Usage()
        known = not used.whole or ((self._order.handle is None or self._before is not None) and not self.keeps)
        cpu_ms = used.cpu_ms if used.cpu_ms is None else max(0.0, used.cpu_ms - (before.cpu_ms or 0.0))
        peak = used.peak_memory_bytes
        if peak is not None and before.peak_memory_bytes is not None and peak <= before.peak_memory_bytes:
            peak = None  # it is another run's
        usage = replace(
            used,
            cpu_ms=cpu_ms if known else None,
            peak_memory_bytes=peak if known else None,
            wall_ms=self._wall_ms(),
            startup_ms=used.startup_ms if self._before is None else None,
            whole=False,
        )
        hits = ending.hits if self._before is None else ending.hits - self._before.hits
        return replace(ending, usage=usage, hits=hits)

    def _wall_ms(self) -> float | None:
        if self._began is None:
            return None
        return round((asyncio.get_running_loop().time() - self._began) * 1000, 3)

    async def may_repeat(self) -> bool:
        """As for a sandbox of its own. A session that ended took files along that only this run's may have been."""
        session = await self._keeping.store.get(self._session.session_id)
        if session is not None and session.live and (session.call or session.state is SessionState.DRAINING):
            raise SandboxFault("the session of the last attempt has not ended yet")
        return session is not None and not session.live and session.runs == 0

    async def finish_creating(self) -> None:
        if self._standing is not None and self.sandbox is None:
            self.sandbox = await asyncio.shield(self._standing)

    async def end(self) -> Mapping[str, Any] | None:
        """Returns what the network saw when the sandbox is cleared, or else destroyed."""
        if self._over:
            return self._seen
        sure = self.sandbox is None or await self._end_programs(self.sandbox)
        if self.network is not None:
            self._seen = await self._end_network(self.network)
        if self.keeps and sure:  # else it stays known, and a later look tries again
            await self._keeping.forget(self._session, self._use.run_id)
        if not self._handed_back:
            await self._released(self._session)
        self._over = True
        return self._seen

    async def _end_programs(self, sandbox: Sandbox) -> bool:
        """Returns whether the programs of the run have ended for sure."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await end_programs(sandbox, (self._use.run_id, f"{self._use.run_id}-left"))
                if self.interpreter is not None and not self._came_to_its_end:
                    self.interpreter["lost"] = interpreter.GONE
                    self.interpreter["lost"] = await self._settle_interpreter(sandbox)
        except (SkillyardError, TimeoutError) as error:
            self._emit(Fault("session", error, self._session.session_id))
            return False
        return True

    async def _released(self, session: SessionRecord) -> None:
        """Clears the sandbox and frees the session, which ends where that fails. Never raises."""
        keeping = self._keeping
        try:
            if self.sandbox is not None:
                async with asyncio.timeout(PATIENCE_S):
                    await keeping.clear(session, self.sandbox)
            await keeping.release(session)
        except SandboxCutOff as error:  # a later look settles it
            self._emit(Fault("session", error, session.session_id))
        except SandboxGone as error:
            await keeping.end(session, LOST, f"its sandbox ended with the run {self._use.run_id}: {error.message}")
        except (SkillyardError, TimeoutError) as error:
            self._emit(Fault("session", error, session.session_id))
            await keeping.end(session, SERVER, str(error) or "it could not be cleared in time")

    @property
    def _space_mb(self) -> int:
        """Returns the memory that files and interpreter may hold between calls."""
        limits = self._spec.limits
        return limits.disk_mb + (limits.memory_mb if self._use.cell else 0)

    @property
    def _memory_mb(self) -> int:
        # The space of its files is counted for as long as the session lives (Keeping.makes).
        return self._spec.limits.memory_mb

    @property
    def _session(self) -> SessionRecord:
        assert self._held is not None, "the block has begun"
        return self._held
