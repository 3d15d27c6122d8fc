"""Skills from directories, served as immutable snapshots and picked up again when they change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from skillyard.bundled import GUIDE
from skillyard.domain.skill import Finding, Skill, SkillLine
from skillyard.stores.skills.layout import ScanLimits
from skillyard.stores.skills.loading import Loader, State
from skillyard.stores.skills.snapshots import Snapshots
from skillyard.stores.skills.tree import Caps
from skillyard.stores.skills.validate import Profile, is_lenient

CHECKED_INLINE = 256
"""Paths that are looked at on the event loop: about 0.3 ms. More go to a thread."""


class DirectorySkills:
    """Implements :class:`skillyard.ports.skills.SkillStore` over directories of bundles.

    ``roots`` in the order of precedence, ``snapshots`` a directory that belongs to this object alone, ``guide`` the
    bundle of the built-in guide (None: there is none). What is on disk is compared with what was loaded at most every
    ``check_every_s`` seconds of ``monotonic``; only bundles that changed are read again.
    """

    def __init__(
        self,
        roots: Sequence[Path],
        snapshots: Path,
        *,
        profile: Profile = "lenient",
        guide: Path | None = GUIDE,
        monotonic: Callable[[], float] = time.monotonic,
        check_every_s: float = 0.5,
        caps: Caps | None = None,
        limits: ScanLimits | None = None,
    ) -> None:
        """Raises InvalidInput for an unknown profile. Nothing is read before the first call."""
        self._snapshots = Snapshots(snapshots.absolute())
        absolute = list(dict.fromkeys(root.absolute() for root in roots))
        self._loader = Loader(
            absolute, guide, self._snapshots, is_lenient(profile), caps or Caps(), limits or ScanLimits()
        )
        self._monotonic = monotonic
        self._check_every_s = check_every_s
        self._check_at = 0.0
        self._state: State | None = None
        self._lock = asyncio.Lock()

    async def start(self, keep: Collection[str] = ()) -> int:
        """Load, and remove the snapshots that nobody uses: neither a skill on disk nor, by its digest in ``keep``, a
        sandbox that outlived the last server. How many went."""
        state = await self._current()
        async with self._lock:  # no load may be writing meanwhile
            used = (self._state or state).digests() | set(keep)
            return await asyncio.to_thread(self._snapshots.sweep, used)

    async def revision(self) -> str:
        return (await self._current()).shelf.revision

    async def page(self, after: str | None, limit: int, namespace: str | None = None) -> Sequence[SkillLine]:
        return (await self._current()).shelf.page(after, limit, namespace)

    async def names(self) -> Sequence[str]:
        return (await self._current()).shelf.names

    async def get(self, name: str, version: str | None = None) -> Skill:
        return (await self._current()).shelf.get(name, version)

    async def versions(self, name: str) -> Sequence[str]:
        return (await self._current()).shelf.versions_of(name)

    async def pinned(self, _name: str) -> str | None:
        return None

    async def refresh(self, _name: str) -> None:
        return

    async def problems(self) -> Sequence[Finding]:
        return (await self._current()).shelf.problems

    async def _current(self) -> State:
        state = self._state
        if state is not None and (self._monotonic() < self._check_at or self._lock.locked()):
            return state
        return await self._checked()

    async def _checked(self) -> State:
        async with self._lock:
            state = self._state
            if state is None or (self._monotonic() >= self._check_at and await self._is_stale(state)):
                state = self._state = await asyncio.to_thread(self._loader.load, state)
            self._check_at = self._monotonic() + self._check_every_s
            return state

    async def _is_stale(self, state: State) -> bool:
        if len(state.watched) <= CHECKED_INLINE:
            return state.is_stale()
        return await asyncio.to_thread(state.is_stale)
