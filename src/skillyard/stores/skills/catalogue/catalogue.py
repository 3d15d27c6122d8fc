"""The catalogue: any number of skills, of directories and published, as immutable snapshots.

An index on disk says which there are; it is a cache that may be deleted. A bundle is read when it is new, when it
changed, and when somebody asks for the skill.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from skillyard.bundled import GUIDE
from skillyard.domain.errors import StoreFault
from skillyard.domain.skill.skill import Finding, Skill, SkillLine
from skillyard.ports.publications import PublicationStore
from skillyard.stores.skills.catalogue.cache_file import BROKEN, is_damage
from skillyard.stores.skills.catalogue.loading import Loader
from skillyard.stores.skills.catalogue.lookup import Finder
from skillyard.stores.skills.catalogue.names import missing
from skillyard.stores.skills.catalogue.published import Publications
from skillyard.stores.skills.catalogue.rows import PUBLISHED
from skillyard.stores.skills.catalogue.search import ScanLimits
from skillyard.stores.skills.catalogue.upkeep import Stopped, Upkeep
from skillyard.stores.skills.snapshots import Snapshots
from skillyard.stores.skills.tree import Caps
from skillyard.stores.skills.validation.bundle import Profile, is_lenient
from skillyard.stores.sqlite.faults import as_fault

CHECKED_INLINE = 256
"""Paths that are looked at on the event loop: about 1 ms. More go to a thread."""
MAX_PROBLEMS = 5000
SHARE = 0.1
"""The part of one processor that rescans take at most while nothing changes."""
WALK_EVERY_S = 0.5
PAUSE = 2
"""Times the length of a search that found changes until the next: there are often more."""

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Catalogue:
    """Implements :class:`skillyard.ports.skills.SkillStore`. Ended by :meth:`close`.

    ``roots`` in the order of precedence; they go before ``publications``. ``index`` is the index's file, beside the
    snapshots when none is given; ``guide`` the bundle of the built-in guide (None: there is none). A small catalogue is
    compared with what is on disk whenever it is used, at most every ``check_every_s`` seconds of ``monotonic``; a large
    one (:attr:`Upkeep.is_large`) in the background, and each skill when it is asked for.
    """

    def __init__(
        self,
        roots: Sequence[Path],
        snapshots: Path | Snapshots,
        *,
        index: Path | None = None,
        publications: PublicationStore | None = None,
        profile: Profile = "lenient",
        guide: Path | None = GUIDE,
        monotonic: Callable[[], float] = time.monotonic,
        check_every_s: float = 0.5,
        caps: Caps | None = None,
        limits: ScanLimits | None = None,
    ) -> None:
        """Raises InvalidInput for an unknown profile. Nothing is read before the first call."""
        self._snapshots = snapshots if isinstance(snapshots, Snapshots) else Snapshots(snapshots.absolute())
        home = self._snapshots.path("").absolute()
        self._path = index or home.with_name(f"{home.name}.db")
        # The guide has the first place, GUIDE_RANK; without one an empty path keeps it.
        self._roots = [str(guide or ""), *dict.fromkeys(str(root.absolute()) for root in roots)]
        self._limits = limits or ScanLimits()
        self._loader = Loader(self._snapshots, is_lenient(profile), caps or Caps())
        self._publications = Publications(publications, self._loader)
        self._monotonic = monotonic
        self._check_every_s = check_every_s
        self._check_at = 0.0
        self._finder = Finder(self._loader, self._publications, monotonic, check_every_s)
        self._upkeep: Upkeep | None = None
        self._rescans: asyncio.Task[None] | None = None
        self._is_used = False
        self._end = asyncio.Event()
        self._lock = asyncio.Lock()

    async def start(self, keep: Collection[str] = ()) -> int:
        """Loads the catalogue before anything is served. Returns how many unused snapshots it removed.

        A snapshot is used by a skill on disk, by a published one, withdrawn or not, and by a sandbox that outlived the
        last server, whose digest is in ``keep``. The first start reads every bundle, and logs how far it is. Raises
        StoreFault."""

        async def unused(upkeep: Upkeep) -> set[str]:
            return await asyncio.to_thread(upkeep.unused, keep)

        found = await self._steady(unused)
        if found:
            found -= await self._publications.digests()
        await asyncio.to_thread(self._snapshots.remove, found)
        return len(found)

    async def close(self) -> None:
        """Idempotent."""
        self._end.set()
        if self._upkeep is not None:
            self._upkeep.stop()
        if self._rescans is not None:
            with suppress(asyncio.CancelledError):
                await self._rescans
        async with self._lock:
            upkeep, self._upkeep = self._upkeep, None
            if upkeep is not None:
                await asyncio.to_thread(upkeep.close)

    async def revision(self) -> str:
        async def ask(upkeep: Upkeep) -> str:
            return upkeep.revision

        return await self._steady(ask)

    async def page(self, after: str | None, limit: int, namespace: str | None = None) -> Sequence[SkillLine]:
        async def ask(upkeep: Upkeep) -> Sequence[SkillLine]:
            return upkeep.near.page(after, limit, namespace)

        return await self._steady(ask)

    async def get(self, name: str, version: str | None = None) -> Skill:
        async def ask(upkeep: Upkeep) -> Skill:
            return await self._finder.get(upkeep, name, version)

        return await self._steady(ask)

    async def versions(self, name: str) -> Sequence[str]:
        async def ask(upkeep: Upkeep) -> Sequence[str]:
            found = upkeep.near.name(name)
            if found is None:
                raise missing(upkeep.near.of_name(name), name, None)
            return tuple(found.by_version)

        return await self._steady(ask)

    async def not_published(self, name: str) -> frozenset[str]:
        async def ask(upkeep: Upkeep) -> frozenset[str]:
            found = upkeep.near.name(name)
            served = found.by_version if found is not None else {}
            return frozenset(version for version, entry in served.items() if entry.rank != PUBLISHED)

        return await self._steady(ask)

    async def pinned(self, name: str) -> str | None:
        async def ask(upkeep: Upkeep) -> str | None:
            found = upkeep.near.name(name)
            return found.latest if found is not None and found.is_pinned else None

        return await self._steady(ask)

    async def problems(self) -> Sequence[Finding]:
        """Returns at most MAX_PROBLEMS; of more bundles with problems the last says the number."""

        async def ask(upkeep: Upkeep) -> Sequence[Finding]:
            found = [*upkeep.notes, *upkeep.near.problems(MAX_PROBLEMS + 1)]
            if len(found) <= MAX_PROBLEMS:
                return found
            message = f"{upkeep.near.problem_count()} bundles have problems; the first {MAX_PROBLEMS} are told"
            return [*islice(found, MAX_PROBLEMS), Finding("note", "", 0, "more-problems", message)]

        return await self._steady(ask)

    async def refresh(self, name: str) -> None:
        """Serves ``name`` as it is published now, and everything else that is new."""

        async def ask(upkeep: Upkeep) -> None:
            await self._publications.refresh(upkeep, name)

        await self._steady(ask)

    async def _steady(self, ask: Callable[[Upkeep], Awaitable[T]]) -> T:
        """Returns the answer, from a new index when this one turns out to be damaged. Raises StoreFault."""
        try:
            return await ask(await self._current())
        except BROKEN as error:
            await self._start_anew(error)
        try:
            return await ask(await self._current())
        except BROKEN as error:
            raise self._fault(error) from error

    async def _current(self) -> Upkeep:
        upkeep = self._upkeep
        if self._end.is_set():
            raise StoreFault("the catalogue is closed")
        if upkeep is not None:
            if self._monotonic() < self._check_at or self._lock.locked():
                return upkeep
            if upkeep.is_large:
                self.rescan()
                self._check_at = self._monotonic() + self._check_every_s
                return upkeep
        return await self._checked()

    async def _checked(self) -> Upkeep:
        async with self._lock:
            upkeep = self._upkeep
            if upkeep is None:
                upkeep = self._upkeep = await self._opened()
            elif self._monotonic() >= self._check_at and (upkeep.paths > CHECKED_INLINE or upkeep.is_stale()):
                await self._check(upkeep)
            self._check_at = self._monotonic() + self._check_every_s
            return upkeep

    async def _check(self, upkeep: Upkeep) -> None:
        """Checks everything. Where nothing can be written, the skills that were served are served on."""
        try:
            await asyncio.to_thread(upkeep.check)
        except sqlite3.Error as error:
            if is_damage(error):
                raise
            logger.warning("the catalogue cannot be brought up to date: %s", self._fault(error))

    async def _opened(self) -> Upkeep:
        try:
            upkeep = await asyncio.to_thread(
                Upkeep, self._path, self._loader, self._roots, self._limits, self._finder.forget
            )
        except sqlite3.Error as error:
            raise self._fault(error) from error
        try:
            try:
                await self._begin(upkeep)
            except BROKEN as error:
                await self._begin_again(upkeep, error)
        except BaseException:
            upkeep.stop()
            await asyncio.shield(asyncio.to_thread(upkeep.close))
            raise
        return upkeep

    async def _begin(self, upkeep: Upkeep) -> None:
        await asyncio.to_thread(upkeep.begin)
        await self._publications.begin(upkeep)
        if upkeep.is_large:
            self.rescan()
        else:
            await asyncio.to_thread(upkeep.check)

    async def _start_anew(self, error: Exception) -> None:
        """Begins with a new index. Raises StoreFault when that would not help."""
        async with self._lock:
            if self._upkeep is None:
                raise self._fault(error) from error
            await self._begin_again(self._upkeep, error)

    async def _begin_again(self, upkeep: Upkeep, error: Exception) -> None:
        if self._end.is_set() or not is_damage(error):
            raise self._fault(error) from error
        try:
            await asyncio.to_thread(upkeep.renew)
            await self._begin(upkeep)
        except (*BROKEN, OSError) as again:
            raise self._fault(again) from again

    def _fault(self, error: Exception) -> StoreFault:
        if isinstance(error, sqlite3.Error):
            return as_fault(error, str(self._path))
        return StoreFault(f"the catalogue's index {self._path} cannot be used: {error}")

    def rescan(self) -> None:
        """Has somebody go round in the background. Cheap: called with each use of a large catalogue."""
        self._is_used = True
        if (self._rescans is None or self._rescans.done()) and not self._end.is_set():
            self._rescans = asyncio.get_running_loop().create_task(self._go_round(), name="catalogue rescan")

    async def _go_round(self) -> None:
        """Looks at directories and bundles in turns, until nobody uses the catalogue for a round.

        Each look is followed by a rest of nine times its length."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while self._is_used and not self._end.is_set():
            self._is_used = False
            after: int | None = 0
            while after is not None and not self._end.is_set():
                began = loop.time()
                if began >= due:
                    changed = await self._in_thread(Upkeep.walk)
                    took = loop.time() - began
                    due = began + max(WALK_EVERY_S, took * PAUSE if changed else took / SHARE)
                    began = loop.time()
                after = await self._in_thread(partial(Upkeep.survey, after=after))
                await self._rest((loop.time() - began) * (1 / SHARE - 1))
            await self._rest(due - loop.time())

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._end.wait(), max(seconds, 0.001))

    async def _in_thread(self, work: Callable[[Upkeep], T]) -> T | None:
        """Returns None when it failed: the next time may be better."""
        upkeep = self._upkeep
        if upkeep is None:
            return None
        try:
            return await asyncio.to_thread(work, upkeep)
        except Stopped:
            return None
        except BROKEN as error:
            try:
                await self._start_anew(error)
            except StoreFault as fault:
                logger.warning("the catalogue cannot be brought up to date: %s", fault)
            return None
