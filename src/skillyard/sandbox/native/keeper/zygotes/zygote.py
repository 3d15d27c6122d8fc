"""The warm interpreters of a keeper: one an environment and group, replaced when it is old.

They are closed when all together hold too much, or when they are not used.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from skillyard.ipc import packets
from skillyard.sandbox.native.groups.groups import Group
from skillyard.sandbox.native.keeper.ground import Household, Source, Warmth
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.messages import Said, Word
from skillyard.sandbox.native.keeper.request import Key
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.zygotes.process import Hooks, Plan, Upkeep, ZygoteProcess

_ASKED_AT_ONCE = 16
_BAD_LUCK = 2
"""Sandboxes of a zygote with packages that may end one after the other before they were made, once one was."""


class Zygote:
    """``plan`` starts its processes. ``lacks(sandbox, process)`` says which wall of a sandbox is missing, where that
    process imported packages ahead; ``bury`` takes a control group that nobody is in."""

    def __init__(
        self,
        loop: Loop,
        plan: Plan,
        upkeep: Upkeep,
        household: Household,
        lacks: Callable[[Sandbox, ZygoteProcess], str],
        bury: Callable[[Group], None],
    ) -> None:
        self._loop = loop
        self._plan = plan
        self._upkeep = upkeep
        self._household = household
        self._lacking = lacks
        self._hooks = Hooks(self._is_ready, self._answered, self._ended, household.ours, bury)
        self._faults: dict[str, str] = {}
        self._waiting: deque[Sandbox] = deque()
        self._asked: deque[Sandbox] = deque()
        self._awaited: list[Callable[[Warmth], None]] = []
        self._current: ZygoteProcess | None = None
        self._why = ""

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._asked or self._awaited)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes()]

    def weigh(self) -> int:
        """Returns the MiB of all its processes, and ends one whose packages took too much."""
        for process in self._processes():
            if process.modules and process.ready and process.measured_mb() > self._upkeep.most_mb:
                process.disown(f"its packages hold {process.memory_mb} MiB")
        return sum(process.measured_mb() for process in self._processes())

    def order(self, sandbox: Sandbox) -> None:
        if self._ensure() is None:
            self._household.failed(sandbox, f"the zygote cannot start: {self._why}")
        else:
            self._waiting.append(sandbox)
            self._hand_out()

    def warm(self, then: Callable[[Warmth], None]) -> None:
        """Starts the interpreter ahead; calls ``then`` when it serves or has failed."""
        current = self._ensure()
        if current is None:
            then(Warmth(faults=dict(self._faults), error=self._why))
        elif current.ready:
            then(self._warmth(current))
        else:
            self._awaited.append(then)

    def close(self) -> None:
        while self._current is not None:
            self._ended(self._current, again=False)

    def _processes(self) -> list[ZygoteProcess]:
        current = self._current
        return [process for process in (current, current and current.replaced_by) if process is not None]

    def _warmth(self, process: ZygoteProcess) -> Warmth:
        return Warmth(process.modules, dict(self._faults), process.memory_mb)

    def _ensure(self) -> ZygoteProcess | None:
        current = self._current
        if current is None:
            self._current = self._start()
        elif current.old():
            current.replaced_by = self._start()
        return self._current

    def _start(self) -> ZygoteProcess | None:
        """Starts a process without modules that failed before; if it must be, without any."""
        modules = [name for name in self._plan.modules if name not in self._faults]
        try:
            return ZygoteProcess(self._loop, self._plan, modules, self._upkeep, self._hooks)
        except OSError as error:
            self._why = error.strerror or str(error)
        if not modules:
            return None
        self._faults |= dict.fromkeys(modules, self._why)
        return self._start()

    def _hand_out(self) -> None:
        """Asks for as many clones as a socket takes, unless a successor is ready."""
        while self._waiting and len(self._asked) < _ASKED_AT_ONCE:
            current = self._current
            if current is None or not current.ready or (current.replaced_by and current.replaced_by.ready):
                return
            self._ask(current, self._waiting.popleft())

    def _ask(self, current: ZygoteProcess, sandbox: Sandbox) -> None:
        try:
            fds = sandbox.descriptors()
        except OSError as error:
            self._household.failed(sandbox, f"its control groups: {error.strerror}")
            return
        try:
            packets.send_raw(current.sock, sandbox.place.order, fds)
        except OSError as error:
            sandbox.handed_over(fds)
            self._ended(current)
            self._household.failed(sandbox, f"the zygote is gone: {error.strerror}")
            return
        except ValueError as error:
            sandbox.handed_over(fds)
            self._household.failed(sandbox, str(error))
            return
        sandbox.handed_over(fds)
        current.asks()
        self._asked.append(sandbox)

    def _answered(self, process: ZygoteProcess, said: Said) -> None:
        sandbox = self._asked.popleft()
        if said.word is Word.CLONED:
            sandbox.on_left = lambda: self._left(sandbox, process)
            if process.modules:
                sandbox.lacks = lambda: self._lacks(sandbox, process)
            sandbox.cloned(said.pid, said.pidfd, ready=said.ready)
        else:
            self._household.failed(sandbox, said.text)
        self._hand_out()

    def _left(self, sandbox: Sandbox, process: ZygoteProcess) -> None:
        process.left(sandbox.pid)
        if not process.modules:
            return
        if sandbox.ready_at is not None:
            process.good, process.bad = True, 0
            return
        process.bad += 1
        if not process.good or process.bad > _BAD_LUCK:
            process.disown("its sandboxes end before they are made")

    def _lacks(self, sandbox: Sandbox, process: ZygoteProcess) -> str:
        """Returns the missing wall. The packages' code may then have spoiled all walls: it clones no more."""
        why = self._lacking(sandbox, process)
        if why:
            process.disown(f"its sandboxes have not all walls: {why}")
        return why

    def _is_ready(self, process: ZygoteProcess) -> None:
        self._promote(process)
        self._told(self._warmth(process))
        self._household.grew()

    def _told(self, warmth: Warmth) -> None:
        awaited, self._awaited = self._awaited, []
        for then in awaited:
            then(warmth)

    def _promote(self, process: ZygoteProcess) -> None:
        """Makes a fresh process serve, and ends the one before; its sandboxes go on."""
        if self._current is not None and self._current.replaced_by is process:
            if self._asked:
                self._loop.after(0.01, lambda: self._promote(process))
                return
            self._current.close()
            self._current = process
        self._hand_out()

    def _ended(self, process: ZygoteProcess, *, again: bool = True) -> None:
        process.close()
        self._blame(process)
        if process is not self._current:
            if self._current is not None and self._current.replaced_by is process:
                self._current.replaced_by = None
            return
        self._current = process.replaced_by
        if self._current is None and again and not process.ready and process.modules:
            self._current = self._start()  # its callers have asked for no module in particular
            if self._current is not None:
                return
        self._give_up(self._why_of(process))

    def _blame(self, process: ZygoteProcess) -> None:
        """Blames the module that was being imported, or all of a process that was spoiled."""
        if not process.ready and process.imported < len(process.modules):
            self._faults[process.modules[process.imported]] = self._why_of(process)
        elif process.lied or not process.ready:
            self._faults |= dict.fromkeys(process.modules, self._why_of(process))

    def _give_up(self, why: str) -> None:
        failed = [*self._asked, *self._waiting]
        self._asked.clear()
        self._waiting.clear()
        self._told(Warmth(faults=dict(self._faults), error=why))
        for sandbox in failed:
            self._household.failed(sandbox, why)

    def _why_of(self, process: ZygoteProcess) -> str:
        """Returns why a process ended: our reason, or its own last words."""
        ended = process.fault in ("", "it ended")
        return (process.complaint() or "the zygote ended") if ended else process.fault


MOST = 32
"""Zygotes at once, whatever they hold."""

_LOOK_S = 10.0


class Zygotes:
    """Bounds all sources to ``total_mb`` MiB when nothing is at work, and to ``idle_s`` unused.

    ``make(key)`` makes a missing source, ``stays(key)`` says that it is never closed, and ``closed(key)`` hears of one
    that was.
    """

    def __init__(
        self,
        loop: Loop,
        total_mb: int,
        idle_s: float,
        make: Callable[[Key], Source],
        stays: Callable[[Key], bool],
        closed: Callable[[Key], None],
    ) -> None:
        self._loop = loop
        self._total_mb = total_mb
        self._idle_s = idle_s
        self._make = make
        self._stays = stays
        self._closed = closed
        self._sources: dict[Key, Source] = {}
        """The one that was needed last is the last."""
        self._needed_at: dict[Key, float] = {}
        self._trimming = self._aging = False

    def __contains__(self, key: Key) -> bool:
        return key in self._sources

    def __len__(self) -> int:
        return len(self._sources)

    def get(self, key: Key) -> Source:
        source = self._sources.pop(key, None)
        if source is None:
            source = self._make(key)
            self.trim_soon()
        self._sources[key] = source
        self._needed_at[key] = time.monotonic()
        self._age_later()
        return source

    def pids(self) -> set[int]:
        return {pid for source in self._sources.values() for pid in source.pids}

    def trim_soon(self) -> None:
        """Checks the bound soon, since one of them may hold more than before."""
        if not self._trimming:
            self._trimming = True
            self._loop.when_idle(self._trim)

    def close(self) -> None:
        for source in self._sources.values():
            source.close()

    def _trim(self) -> None:
        """Closes sources over the bound, those that were needed longest ago first."""
        self._trimming = False
        held = {key: source.weigh() for key, source in self._sources.items()}
        for key in list(held):
            if sum(held.values()) <= self._total_mb and len(held) <= MOST:
                return
            if self._may_go(key):
                self._let_go(key)
                del held[key]

    def _may_go(self, key: Key) -> bool:
        return self._sources[key].idle and not self._stays(key)

    def let_go(self, key: Key) -> None:
        """Closes the source of ``key``, where there is one: nobody needs it again."""
        if key in self._sources:
            self._let_go(key)

    def _let_go(self, key: Key) -> None:
        del self._needed_at[key]
        self._sources.pop(key).close()
        self._closed(key)

    def _age_later(self) -> None:
        if not self._aging:
            self._aging = True
            self._loop.after(min(_LOOK_S, self._idle_s / 2), self._age)

    def _age(self) -> None:
        self._aging = False
        before = time.monotonic() - self._idle_s
        for key in [key for key, needed in self._needed_at.items() if needed < before and self._may_go(key)]:
            self._let_go(key)
        self._trim()
        if self._sources:
            self._age_later()
