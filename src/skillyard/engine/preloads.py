"""Importing ahead what runs import: learnt from them, made ready beside them, and used by those that come after.

Importing a package runs its code in an interpreter that later sandboxes are forked from, before their walls stand. So
it is done only where somebody consented to the packages: the operator, who named the environment, or who approved
every skill that asked for them. What code asks for by itself is imported by its own run alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from skillyard.domain.frames import Imports
from skillyard.domain.preloading import Habits, ModuleFault
from skillyard.domain.sandbox import EnvironmentRef, SandboxSpec
from skillyard.engine.observer import Fault, ModulesAhead, Observer
from skillyard.engine.tasks import Tasks
from skillyard.ports.clock import Clock
from skillyard.ports.preloads import PreloadStore
from skillyard.ports.sandbox import Backend

if TYPE_CHECKING:
    from skillyard.engine.environments import Environment
    from skillyard.engine.plan import Plan

MOST_KNOWN = 256
"""Environments whose habits are in memory."""
_ATTEMPTS = 8
_SAVE_EVERY = 64


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a run may teach: ``key`` says of which environment, ``modules`` are that one's top-level names."""

    key: str
    backend: Backend
    modules: frozenset[str]
    ref: EnvironmentRef
    """Without what was learnt."""


def may_preload(plan: Plan, environment: Environment, named: bool) -> bool:
    """Whether somebody consented to the environment's packages. ``named``: it is the operator's own, as it stands."""
    if environment.built is None:
        return False
    return named or bool(plan.skills and not plan.request.packages and not plan.trust.least)


class Preloads:
    """``enabled`` is the operator's word. All that is learnt is kept in ``store`` now and then."""

    def __init__(self, store: PreloadStore | None, clock: Clock, emit: Observer, *, enabled: bool = True) -> None:
        self._store = store
        self._clock = clock
        self._emit = emit
        self._enabled = enabled
        self._habits: dict[str, Habits] = {}
        self._at_work: set[str] = set()
        self._deaf: set[str] = set()
        """Keys for which nothing can be imported ahead."""
        self._tasks = Tasks()

    async def chosen(
        self, backend: Backend, environment: Environment, group: str, *, allowed: bool
    ) -> tuple[EnvironmentRef, Lesson | None]:
        """The environment as a run gets it, and what the run may teach."""
        ref = environment.ref
        if not allowed:
            return (replace(ref, preload=()) if ref.preload else ref), None
        if not self._enabled or environment.built is None:
            return ref, None
        lesson = Lesson(_key(backend, ref, group), backend, frozenset(environment.built.modules), ref)
        habits = await self._known(lesson.key)
        return _with(ref, habits.ahead), lesson

    def learn(self, lesson: Lesson, spec: SandboxSpec, imports: Imports | None) -> None:
        """One run has ended."""
        habits = self._habits.get(lesson.key)
        if habits is None:  # so many others came meanwhile
            return
        told = imports or Imports()
        habits.note(told.imported, told.used, lesson.modules)
        wanted = habits.wanted(self._clock.now())
        if lesson.key in self._at_work or lesson.key in self._deaf:
            return
        if habits.due(wanted):
            self._at_work.add(lesson.key)
            self._tasks.spawn(self._adopt(lesson, habits, spec, wanted), f"preload {lesson.key}")
        elif habits.since % _SAVE_EVERY == 0:
            self._tasks.spawn(self._save(lesson.key, habits), f"save {lesson.key}")

    async def settled(self) -> None:
        """Wait until nothing is being made ready."""
        await self._tasks.drain()

    async def close(self) -> None:
        await self._tasks.close()

    async def _known(self, key: str) -> Habits:
        habits = self._habits.get(key)
        if habits is None:
            loaded = await self._store.load(key) if self._store is not None else None
            habits = self._habits.setdefault(key, loaded or Habits())
            while len(self._habits) > MOST_KNOWN:
                del self._habits[next(iter(self._habits))]
        return habits

    async def _adopt(self, lesson: Lesson, habits: Habits, spec: SandboxSpec, wanted: tuple[str, ...]) -> None:
        """Have the backend make ready for ``wanted``; runs go on with what they had until it is."""
        try:
            faults: dict[str, str] = {}
            for _ in range(_ATTEMPTS):
                ref = _with(lesson.ref, wanted)
                prepared = await lesson.backend.prepare(replace(spec, environment=ref, mounts=(), egress=None))
                if prepared is None or not (prepared.preloaded or prepared.faults or not wanted):
                    self._deaf.add(lesson.key)
                    return
                if set(wanted) <= set(prepared.preloaded):
                    habits.adopt(wanted)
                    self._emit(ModulesAhead(ref.name, ref.digest, wanted, faults, prepared.memory_bytes))
                    break
                faults |= prepared.faults
                self._leave_out(habits, prepared.faults)
                wanted = tuple(name for name in wanted if name not in prepared.faults)
            else:
                habits.adopt(())
            await self._save(lesson.key, habits)
        except Exception as error:  # noqa: BLE001 - a hint that fails costs time only
            self._emit(Fault("preload", error))
        finally:
            self._at_work.discard(lesson.key)

    def _leave_out(self, habits: Habits, faults: Mapping[str, str]) -> None:
        now = self._clock.now()
        habits.faults |= {name: ModuleFault(why, now) for name, why in faults.items()}

    async def _save(self, key: str, habits: Habits) -> None:
        if self._store is not None:
            await self._store.save(key, habits)


def _with(ref: EnvironmentRef, learnt: tuple[str, ...]) -> EnvironmentRef:
    return replace(ref, preload=tuple(dict.fromkeys([*ref.preload, *learnt])))


def _key(backend: Backend, ref: EnvironmentRef, group: str) -> str:
    """A file's name."""
    whose = f"-{hashlib.sha256(group.encode()).hexdigest()[:12]}" if group else ""
    return f"{ref.digest}-{backend.name}{whose}"
