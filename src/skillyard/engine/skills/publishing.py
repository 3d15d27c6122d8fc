"""Publishing: an archive becomes an immutable version, whose state the publisher may change.

Nothing is stored before everything was checked. Then the bytes come first and the row that names them second: a
crash in between leaves a snapshot that no row names, which the next start removes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from skillyard.domain.errors import Forbidden, SkillNotFound
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.name import GUIDE
from skillyard.domain.skill.publication import (
    Disabled,
    Pin,
    Publication,
    PublicationAct,
    PublicationEvent,
    claim_refusal,
    place_of,
    served_refusal,
)
from skillyard.domain.skill.semver import newest_first
from skillyard.domain.skill.skill import Finding, Skill, SkillSource
from skillyard.engine.observer import CatalogueChanged, Observer
from skillyard.engine.shares import Budget
from skillyard.engine.skills.service import SkillService
from skillyard.engine.tasks import Tasks
from skillyard.ports.clock import Clock
from skillyard.ports.publications import PublicationStore
from skillyard.ports.skills import ArchiveForm, Arrived, BundleStore, Exported
from skillyard.values import dataclass


def publication_view(told: Publication) -> dict[str, Any]:
    """Returns a publication as answers show it. Times are UTC seconds since the epoch.

    ``state`` is ``published`` or ``withdrawn``; only a withdrawn one has principal, time and reason of that."""
    facts: dict[str, Any] = {
        "name": told.name,
        "version": told.version,
        "digest": told.digest,
        "state": "withdrawn" if told.withdrawn else "published",
        "project": told.project,
        "published_at": told.published_at,
        "published_by": told.published_by,
        "size_bytes": told.size,
        "files": told.files,
    }
    if told.withdrawn:
        facts |= {"withdrawn_at": told.withdrawn_at, "withdrawn_by": told.withdrawn_by, "reason": told.reason}
    return facts


def served_view(skill: Skill) -> dict[str, Any]:
    """Returns a version that nobody published; ``state`` is ``directory`` or ``built-in``."""
    return {
        "name": skill.name,
        "version": skill.version,
        "digest": skill.digest,
        "state": str(skill.source),
        "size_bytes": sum(file.size for file in skill.files),
        "files": len(skill.files),
    }


def event_view(event: PublicationEvent) -> dict[str, Any]:
    return {
        "at": event.at,
        "act": str(event.act),
        "version": event.version,
        "digest": event.digest,
        "principal": event.principal,
        "reason": event.reason,
    }


T = TypeVar("T")

LATEST = "latest"
UPLOAD_TOOL, EXPORT_TOOL = "skills.upload", "read_skill_file"
"""The tools that a profile names to allow bundles in and out in streams."""
UPLOADS, DOWNLOADS = (8, 4), (64, 16)
"""Bundles on their way at once: of all, and of one principal. Each is a file, and in memory for a moment."""
_CROWDED = "too many bundles are on their way at once"


@dataclass(frozen=True, slots=True)
class Published:
    """``created`` is False when these bytes were published before. ``findings`` are warnings and notes."""

    publication: Publication
    created: bool
    findings: tuple[Finding, ...]

    def facts(self) -> dict[str, Any]:
        """Returns the publication as answers show it."""
        return {**publication_view(self.publication), "created": self.created}


class Publisher:
    """Bundles in and out, and the state of each version. Changes happen one after the other."""

    def __init__(
        self,
        publications: PublicationStore,
        bundles: BundleStore,
        skills: SkillService,
        clock: Clock,
        tasks: Tasks,
        emit: Observer,
    ) -> None:
        self._publications = publications
        self._bundles = bundles
        self._skills = skills
        self._clock = clock
        self._uploads = Budget(*UPLOADS, _CROWDED)
        self._downloads = Budget(*DOWNLOADS, _CROWDED)
        self._tasks = tasks
        self._emit = emit
        self._line = asyncio.Lock()

    async def publish(self, principal: Principal, chunks: AsyncIterator[bytes]) -> Published:
        """Publishes the bundle in an archive. Reads nothing from ``chunks`` unless the principal may publish at all.

        Raises Forbidden, BundleRefused, VersionTaken, QuotaExceeded, Busy, StoreFault, and errors of ``chunks``.
        """
        principal.require(Scope.PUBLISH)
        with self._uploads.holding(principal.name):
            arrived = await self._bundles.receive(chunks)
            return await self.change(self._take_in(principal, arrived))

    async def find(self, principal: Principal, name: str, version: str) -> Skill:
        """Returns the version to export; ``latest`` is one too. Raises Forbidden, SkillNotFound."""
        principal.require(Scope.DISCOVER)
        return await self._skills.find(principal, name, None if version == LATEST else version)

    @asynccontextmanager
    async def export(self, principal: Principal, skill: Skill, form: ArchiveForm) -> AsyncIterator[Exported]:
        """Gives the archive of a skill that :meth:`find` found, made while the block is entered. Raises Busy,
        StoreFault."""
        with self._downloads.holding(principal.name):
            async with self._bundles.export(skill, form) as archive:
                yield archive

    async def change(self, work: Coroutine[Any, Any, T]) -> T:
        """Does ``work`` alone, and to its end even if the caller goes away.

        The store and the catalogue must not part."""
        return await self._tasks.shielded(self._alone(work), "catalogue change")

    async def versions(self, principal: Principal, name: str, history: int) -> dict[str, Any]:
        """Returns every version of ``name``, withdrawn ones too, and its last events. Raises SkillNotFound."""
        unknown = SkillNotFound("name", f"no skill '{name[:256]}'", skill=name[:256])
        if not principal.may_use(name):
            raise unknown
        published = {told.version: publication_view(told) for told in await self._publications.of(name)}
        elsewhere = [skill for skill in await self._served(name) if skill.source is not SkillSource.PUBLISHED]
        views = {**published, **{skill.version: served_view(skill) for skill in elsewhere}}
        if not views:
            raise unknown
        latest, pin = await self.latest(name), await self._publications.pinned(name)
        return {
            "name": name,
            "latest": latest,
            "pin": None if pin is None else {"version": pin.version, "at": pin.pinned_at, "by": pin.pinned_by},
            "project": await self._publications.owner(name),
            "versions": [{**views[version], "latest": version == latest} for version in newest_first(views)],
            "history": [event_view(event) for event in await self._publications.history(name, limit=history)],
        }

    async def withdraw(self, principal: Principal, name: str, version: str, reason: str) -> dict[str, Any]:
        """Raises SkillNotFound, Forbidden."""
        return await self.change(self._withdraw(principal, name, version, reason))

    async def withdraw_all(self, principal: Principal, name: str, reason: str) -> list[dict[str, Any]]:
        """Withdraws every published version that is served; returns them. Raises SkillNotFound, Forbidden."""
        return await self.change(self._withdraw_all(principal, name, reason))

    async def set_enabled(self, principal: Principal, name: str, *, enabled: bool) -> bool:
        """Lets agents of the principal's project use a skill, or not. Returns whether that is new.

        Raises SkillNotFound for a skill that is not there and not disabled."""
        return await self.change(self._set_enabled(principal, name, enabled=enabled))

    async def latest(self, name: str) -> str | None:
        """Returns the version that the name alone means; None when none is served."""
        try:
            return (await self._skills.store.get(name)).version
        except SkillNotFound:
            return None

    async def restore(self, principal: Principal, name: str, version: str) -> dict[str, Any]:
        """Raises SkillNotFound, Forbidden."""
        return await self.change(self._restore(principal, name, version))

    async def pin(self, principal: Principal, name: str, version: str) -> dict[str, Any]:
        """Raises SkillNotFound, Forbidden."""
        return await self.change(self._pin(principal, name, version))

    async def unpin(self, principal: Principal, name: str) -> dict[str, Any]:
        """Raises SkillNotFound, Forbidden."""
        return await self.change(self._unpin(principal, name))

    async def _alone(self, work: Coroutine[Any, Any, T]) -> T:
        async with self._line:
            return await work

    async def _take_in(self, principal: Principal, arrived: Arrived) -> Published:
        skill, admin = arrived.skill, is_admin(principal)
        await self._check_claim(principal, skill.name)
        wanted = _publication(skill, principal, self._clock.now())
        await self._publications.check(wanted, any_project=admin)
        await self._check_directories(wanted)
        await arrived.keep()
        stored = await self._publications.insert(wanted, any_project=admin)
        told = stored.publication
        if stored.created:
            await self._changed(PublicationAct.PUBLISHED, principal, told)
        else:
            await self._skills.store.refresh(told.name)  # its snapshot may have been damaged until now
        return Published(told, stored.created, skill.findings)

    async def _check_directories(self, wanted: Publication) -> None:
        """Raises VersionTaken when a directory serves that version with other content."""
        store = self._skills.store
        try:
            versions = await store.versions(wanted.name)
        except SkillNotFound:
            return
        for version in versions:
            if place_of(version) == place_of(wanted.version):
                served = await store.get(wanted.name, version)
                if served.source is not SkillSource.PUBLISHED and served.digest != wanted.digest:
                    raise served_refusal(wanted, served.digest)

    async def _withdraw(self, principal: Principal, name: str, version: str, reason: str) -> dict[str, Any]:
        await self._check_published(principal, name, version)
        at = self._clock.now()
        gone = await self._publications.withdraw(name, version, at=at, by=principal.name, reason=reason)
        if gone is None:
            raise _unpublished(name, version)
        if gone.changed:
            await self._changed(PublicationAct.WITHDRAWN, principal, gone.publication)
        return {**publication_view(gone.publication), "changed": gone.changed, "unpinned": gone.unpinned}

    async def _withdraw_all(self, principal: Principal, name: str, reason: str) -> list[dict[str, Any]]:
        served = [told.version for told in await self._publications.of(name) if not told.withdrawn]
        if not served:
            raise SkillNotFound("skill_name", f"no published version of '{name[:256]}' is served", skill=name[:256])
        return [await self._withdraw(principal, name, version, reason) for version in served]

    async def _set_enabled(self, principal: Principal, name: str, *, enabled: bool) -> bool:
        project = principal.project
        was_off = name in await self._skills.disabled(project)
        if not principal.may_use(name) or not (was_off or await self._skills.store.versions(name)):
            raise SkillNotFound("skill_name", f"no skill '{name[:256]}'", skill=name[:256])
        if was_off != enabled:
            return False
        if enabled:
            await self._publications.enable(project, name)
        else:
            await self._publications.disable(Disabled(project, name, self._clock.now(), principal.name))
        self._skills.forget_disabled()
        self._emit(CatalogueChanged("enabled" if enabled else "disabled", name, "", "", principal.name, project))
        return True

    async def _restore(self, principal: Principal, name: str, version: str) -> dict[str, Any]:
        await self._check_published(principal, name, version)
        before = await self._publications.find(name, version)
        if before is not None and before.withdrawn:
            # It was withdrawn for a reason, so it is to be approved again.
            await self._skills.standings.end(principal, name, before.version, "restored")
        told = await self._publications.restore(name, version, at=self._clock.now(), by=principal.name)
        if before is None or told is None:
            raise _unpublished(name, version)
        if before.withdrawn:
            await self._changed(PublicationAct.RESTORED, principal, told)
        return {**publication_view(told), "changed": before.withdrawn}

    async def _pin(self, principal: Principal, name: str, version: str) -> dict[str, Any]:
        """Pins a version that is served; another cannot be the latest."""
        await self._check_claim(principal, name)
        skill = await self._skills.store.get(name, version)
        wanted = Pin(name, skill.version, self._clock.now(), principal.name)
        stored = await self._publications.pin(wanted)
        if stored is wanted:
            owner = await self._publications.owner(name) or principal.project
            await self._tell(PublicationAct.PINNED, principal, name, skill.version, skill.digest, owner)
        facts = {"pinned_at": stored.pinned_at, "pinned_by": stored.pinned_by, "changed": stored is wanted}
        return {"name": name, "version": skill.version, "digest": skill.digest, **facts}

    async def _unpin(self, principal: Principal, name: str) -> dict[str, Any]:
        await self._check_claim(principal, name)
        now = self._clock.now()
        gone = await self._publications.unpin(name, at=now, by=principal.name)
        if gone is not None:
            owner = await self._publications.owner(name) or principal.project
            await self._tell(PublicationAct.UNPINNED, principal, name, gone.version, "", owner)
        latest = await self.latest(name)
        if gone is None and latest is None and await self._publications.owner(name) is None:
            raise SkillNotFound("name", f"no skill '{name[:256]}'", skill=name[:256])
        facts = {} if gone is None else {"unpinned_at": now, "unpinned_by": principal.name}
        return {"name": name, "unpinned": None if gone is None else gone.version, **facts, "latest": latest}

    async def _changed(self, act: PublicationAct, principal: Principal, told: Publication) -> None:
        await self._tell(act, principal, told.name, told.version, told.digest, told.project)

    async def _tell(
        self, act: PublicationAct, principal: Principal, name: str, version: str, digest: str, project: str
    ) -> None:
        """Serves the name as the store has it now, and tells the observer."""
        await self._skills.store.refresh(name)
        self._emit(CatalogueChanged(str(act), name, version, digest, principal.name, project))

    async def _served(self, name: str) -> list[Skill]:
        store = self._skills.store
        try:
            return [await store.get(name, version) for version in await store.versions(name)]
        except SkillNotFound:  # there are none, or one was withdrawn meanwhile
            return []

    async def _check_published(self, principal: Principal, name: str, version: str) -> None:
        """Raises SkillNotFound for a version that was never published, to all alike; Forbidden."""
        if not principal.may_use(name) or await self._publications.owner(name) is None:
            raise _unpublished(name, version)
        await self._check_claim(principal, name)

    async def _check_claim(self, principal: Principal, name: str) -> None:
        """Raises Forbidden unless the principal may publish, withdraw and pin under ``name``.

        It may for its project, which published the name first or may take it. Names that the operator serves from
        directories are the operator's."""
        if name == GUIDE:
            raise Forbidden(f"'{GUIDE}' is built in and stays as it is", skill=name)
        if not principal.may_use(name):
            raise Forbidden(f"this token's patterns of skill names do not admit '{name}'", skill=name)
        if is_admin(principal):
            return
        owner = await self._publications.owner(name)
        if (refusal := claim_refusal(name, owner, principal.project)) is not None:
            raise refusal
        if await self._skills.store.not_published(name):
            raise Forbidden(f"'{name}' is the operator's: it is served from a directory of this server", skill=name)


def is_admin(principal: Principal) -> bool:
    return Scope.ADMIN in principal.scopes


def _publication(skill: Skill, principal: Principal, now: float) -> Publication:
    return Publication(
        name=skill.name,
        version=skill.version,
        digest=skill.digest,
        published_at=now,
        published_by=principal.name,
        project=principal.project,
        size=sum(file.size for file in skill.files),
        files=len(skill.files),
    )


def _unpublished(name: str, version: str) -> SkillNotFound:
    rule = f"no version '{version}' of '{name[:256]}' was published (what lies in a directory is changed there)"
    return SkillNotFound("version", rule, skill=name[:256])
