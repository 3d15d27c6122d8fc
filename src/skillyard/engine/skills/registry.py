"""What publishing works with: the facts, the bytes, and what serves them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from skillyard.domain.principal import Principal
from skillyard.domain.skill.publication import PublicationAct
from skillyard.engine.observer import CatalogueChanged, Observer
from skillyard.engine.shares import Budget
from skillyard.engine.tasks import Tasks
from skillyard.ports.bundles import BundleStore
from skillyard.ports.clock import Clock
from skillyard.ports.publications import PublicationStore
from skillyard.ports.skills import SkillStore

T = TypeVar("T")

UPLOADS, DOWNLOADS = (8, 4), (64, 16)
"""Bundles on their way at once: of all, and of one principal."""
_CROWDED = "too many bundles are on their way at once"


class Registry:
    """One for an engine. Whatever changes what is published does it through :meth:`change`, one after the other."""

    def __init__(
        self,
        publications: PublicationStore,
        bundles: BundleStore,
        skills: SkillStore,
        clock: Clock,
        tasks: Tasks,
        emit: Observer,
    ) -> None:
        self.publications = publications
        self.bundles = bundles
        self.skills = skills
        self.clock = clock
        # Each is a file on the disk, and in memory for a moment.
        self.uploads = Budget(*UPLOADS, _CROWDED)
        self.downloads = Budget(*DOWNLOADS, _CROWDED)
        self._tasks = tasks
        self._emit = emit
        self._line = asyncio.Lock()

    async def change(self, work: Coroutine[Any, Any, T]) -> T:
        """Do ``work`` alone, and to its end even if the caller goes away: what the store knows and what the
        catalogue serves must not part."""
        return await self._tasks.shielded(self._alone(work), "catalogue change")

    async def _alone(self, work: Coroutine[Any, Any, T]) -> T:
        async with self._line:
            return await work

    async def changed(
        self, act: PublicationAct, principal: Principal, name: str, version: str, digest: str, project: str
    ) -> None:
        """Serve it so, and tell whoever watches."""
        await self.skills.refresh(name)
        self._emit(CatalogueChanged(str(act), name, version, digest, principal.name, project))
