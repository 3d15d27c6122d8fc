"""The catalogue: skills of directories and published ones, served as immutable snapshots, at any number.

What there is stands in an index on disk, a cache that may be deleted. Bundles are read when they are new, when they
changed, and when somebody asks for the skill.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from skillyard.bundled import GUIDE
from skillyard.domain.errors import StoreFault
from skillyard.domain.skill.skill import Finding, Skill, SkillLine
from skillyard.ports.publications import PublicationStore
from skillyard.stores.skills.catalogue.cache_file import BROKEN, is_damage
from skillyard.stores.skills.catalogue.directories import ScanLimits
from skillyard.stores.skills.catalogue.loading import Loader
from skillyard.stores.skills.catalogue.lookup import Finder, missing
from skillyard.stores.skills.catalogue.publications import Publications
from skillyard.stores.skills.catalogue.rescans import Rescans
from skillyard.stores.skills.catalogue.rows import PUBLISHED
from skillyard.stores.skills.catalogue.update import Search
from skillyard.stores.skills.catalogue.upkeep import Stopped, Upkeep
from skillyard.stores.skills.snapshots import Snapshots
from skillyard.stores.skills.tree import Caps
from skillyard.stores.skills.validation.bundle import Profile, is_lenient
from skillyard.stores.sqlite.faults import as_fault

CHECKED_INLINE = 256
"""Paths that are looked at on the event loop: about 1 ms. More go to a thread."""
MAX_PROBLEMS = 5000

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
        absolute = list(dict.fromkeys(str(root.absolute()) for root in roots))
        self._search = Search(str(guide) if guide else None, absolute, limits or ScanLimits())
        self._loader = Loader(self._snapshots, is_lenient(profile), caps or Caps())
        self._publications = Publications(publications)
        self._monotonic = monotonic
        self._check_every_s = check_every_s
        self._check_at = 0.0
        self._finder = Finder(self._loader, self._publications, monotonic, check_every_s)
        self._rescans = Rescans(self._walk, self._survey)
        self._upkeep: Upkeep | None = None
        self._is_closed = False
        self._lock = asyncio.Lock()

    async def start(self, keep: Collection[str] = ()) -> int:
        """Load, and remove the snapshots that nobody uses: no skill on disk, no published one, withdrawn or not, nor,
        by its digest in ``keep``, a sandbox that outlived the last server. How many went. Before anything is served.

        The first start reads every bundle, and says in the log how far it is; raises StoreFault."""

        async def unused(upkeep: Upkeep) -> set[str]:
            return await asyncio.to_thread(upkeep.unused, keep)

        found = await self._steady(unused)
        if found:
            found -= await self._publications.digests()
        await asyncio.to_thread(self._snapshots.remove, found)
        return len(found)

    async def close(self) -> None:
        """Idempotent."""
        self._is_closed = True
        if self._upkeep is not None:
            self._upkeep.stop()
        await self._rescans.close()
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
        """At most MAX_PROBLEMS, and one that says how many bundles have some when that is not all."""

        async def ask(upkeep: Upkeep) -> Sequence[Finding]:
            found = [*upkeep.notes, *upkeep.near.problems(MAX_PROBLEMS + 1)]
            if len(found) <= MAX_PROBLEMS:
                return found
            message = f"{upkeep.near.problem_count()} bundles have problems; the first {MAX_PROBLEMS} are told"
            return [*islice(found, MAX_PROBLEMS), Finding("note", "", 0, "more-problems", message)]

        return await self._steady(ask)

    async def refresh(self, name: str) -> None:
        """Whatever else was published since the last time is served too."""

        async def ask(upkeep: Upkeep) -> None:
            await self._publications.refresh(upkeep, name)

        await self._steady(ask)

    async def _steady(self, ask: Callable[[Upkeep], Awaitable[T]]) -> T:
        """The answer, from a new index when this one turns out to be damaged. Raises StoreFault."""
        try:
            return await ask(await self._current())
        except BROKEN as error:
            await self._mend(error)
        try:
            return await ask(await self._current())
        except BROKEN as error:
            raise self._fault(error) from error

    async def _current(self) -> Upkeep:
        upkeep = self._upkeep
        if self._is_closed:
            raise StoreFault("the catalogue is closed")
        if upkeep is not None:
            if self._monotonic() < self._check_at or self._lock.locked():
                return upkeep
            if upkeep.is_large:
                self._rescans.wake()
                self._check_at = self._monotonic() + self._check_every_s
                return upkeep
        return await self._checked()

    async def _checked(self) -> Upkeep:
        async with self._lock:
            upkeep = self._upkeep
            if upkeep is None:
                upkeep = self._upkeep = await self._opened()
            elif self._monotonic() >= self._check_at and await self._is_stale(upkeep):
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

    async def _is_stale(self, upkeep: Upkeep) -> bool:
        return upkeep.is_stale() if upkeep.paths <= CHECKED_INLINE else True

    async def _opened(self) -> Upkeep:
        try:
            upkeep = await asyncio.to_thread(Upkeep, self._path, self._loader, self._search, self._finder.forget)
        except sqlite3.Error as error:
            raise self._fault(error) from error
        try:
            await self._begin_somehow(upkeep)
        except BaseException:
            upkeep.stop()
            await asyncio.shield(asyncio.to_thread(upkeep.close))
            raise
        return upkeep

    async def _begin_somehow(self, upkeep: Upkeep) -> None:
        try:
            await self._begin(upkeep)
        except BROKEN as error:
            await self._begin_again(upkeep, error)

    async def _begin(self, upkeep: Upkeep) -> None:
        await asyncio.to_thread(upkeep.begin)
        await self._publications.begin(upkeep)
        if upkeep.is_large:
            self._rescans.wake()
        else:
            await asyncio.to_thread(upkeep.check)

    async def _mend(self, error: Exception) -> None:
        """Begin with a new index. Raises StoreFault when that would not help."""
        async with self._lock:
            if self._upkeep is None:
                raise self._fault(error) from error
            await self._begin_again(self._upkeep, error)

    async def _begin_again(self, upkeep: Upkeep, error: Exception) -> None:
        if self._is_closed or not is_damage(error):
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

    async def _walk(self) -> None:
        await self._rescanned(Upkeep.walk)

    async def _survey(self, after: int) -> int | None:
        return await self._rescanned(lambda upkeep: upkeep.survey(after))

    async def _rescanned(self, work: Callable[[Upkeep], T]) -> T | None:
        """None when it failed: the next time may be better."""
        upkeep = self._upkeep
        if upkeep is None:
            return None
        try:
            return await asyncio.to_thread(work, upkeep)
        except Stopped:
            return None
        except BROKEN as error:
            try:
                await self._mend(error)
            except StoreFault as fault:
                logger.warning("the catalogue cannot be brought up to date: %s", fault)
            return None
