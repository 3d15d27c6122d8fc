"""In-memory twins of the stores of publications and of approvals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from skillyard.domain.checks import check_page, check_unicode
from skillyard.domain.skill.publication import (
    Disabled,
    Pin,
    Publication,
    PublicationAct,
    PublicationEvent,
    PublicationLimits,
    claim_refusal,
    pin_refusal,
    place_of,
    version_refusal,
)
from skillyard.domain.skill.semver import newest_first
from skillyard.domain.skill.trust import Approval, ApprovedPackages
from skillyard.ports.publications import Inserted, Withdrawn


class MemoryPublications:
    """A :class:`skillyard.ports.publications.PublicationStore`; ``limits`` may be changed."""

    def __init__(self, limits: PublicationLimits | None = None) -> None:
        self.limits = limits or PublicationLimits()
        self._rows: dict[tuple[str, str], Publication] = {}
        self._pins: dict[str, Pin] = {}
        self._history: list[PublicationEvent] = []
        self._disabled: dict[tuple[str, str], Disabled] = {}

    async def insert(self, publication: Publication, *, any_project: bool = False) -> Inserted:
        judged = await self._judge(publication, any_project)
        if judged.created:
            stored = judged.publication
            self._put(stored)
            self._note(PublicationAct.PUBLISHED, stored, stored.published_at, stored.published_by)
        return judged

    async def check(self, publication: Publication, *, any_project: bool = False) -> None:
        await self._judge(publication, any_project)

    async def _judge(self, publication: Publication, any_project: bool) -> Inserted:
        owner = await self.owner(publication.name)
        if any_project and owner is not None:
            publication = replace(publication, project=owner)
        if (foreign := claim_refusal(publication.name, owner, publication.project)) is not None:
            raise foreign
        stored = await self.find(publication.name, publication.version)
        if stored is not None:
            if (taken := version_refusal(stored, publication)) is not None:
                raise taken
            return Inserted(stored, created=False)
        mine = [row for row in self._rows.values() if row.project == publication.project]
        self.limits.check(len(mine), sum(row.size for row in mine), publication.size)
        return Inserted(publication, created=True)

    async def find(self, name: str, version: str) -> Publication | None:
        return self._rows.get((name, place_of(version)))

    async def of(self, name: str) -> Sequence[Publication]:
        found = {row.version: row for row in self._rows.values() if row.name == name}
        return [found[version] for version in newest_first(found)]

    async def every(self) -> Sequence[Publication]:
        return list(self._rows.values())

    async def owner(self, name: str) -> str | None:
        return next((row.project for row in self._rows.values() if row.name == name), None)

    async def withdraw(self, name: str, version: str, *, at: float, by: str, reason: str) -> Withdrawn | None:
        check_unicode("reason", reason)
        stored = await self.find(name, version)
        if stored is None:
            return None
        if stored.withdrawn:
            return Withdrawn(stored, changed=False, unpinned=False)
        gone = replace(stored, withdrawn_at=at, withdrawn_by=by, reason=reason)
        self._put(gone)
        self._note(PublicationAct.WITHDRAWN, gone, at, by, reason)
        pin = self._pins.get(name)
        unpinned = pin is not None and place_of(pin.version) == place_of(version)
        if unpinned:
            await self.unpin(name, at=at, by=by)
        return Withdrawn(gone, changed=True, unpinned=unpinned)

    async def restore(self, name: str, version: str, *, at: float, by: str) -> Publication | None:
        stored = await self.find(name, version)
        if stored is None or not stored.withdrawn:
            return stored
        back = replace(stored, withdrawn_at=None, withdrawn_by="", reason="")
        self._put(back)
        self._note(PublicationAct.RESTORED, back, at, by)
        return back

    async def pin(self, pin: Pin) -> Pin:
        stored = await self.find(pin.name, pin.version)
        if stored is not None and stored.withdrawn:
            raise pin_refusal(stored)
        before = self._pins.get(pin.name)
        if before is not None and before.version == pin.version:
            return before
        self._pins[pin.name] = pin
        await self._note_pin(PublicationAct.PINNED, pin, pin.pinned_at, pin.pinned_by)
        return pin

    async def unpin(self, name: str, *, at: float, by: str) -> Pin | None:
        gone = self._pins.pop(name, None)
        if gone is not None:
            await self._note_pin(PublicationAct.UNPINNED, gone, at, by)
        return gone

    async def pinned(self, name: str) -> Pin | None:
        return self._pins.get(name)

    async def disable(self, disabled: Disabled) -> Disabled:
        return self._disabled.setdefault((disabled.project, disabled.name), disabled)

    async def enable(self, project: str, name: str) -> bool:
        return self._disabled.pop((project, name), None) is not None

    async def disabled(self) -> Sequence[Disabled]:
        return [self._disabled[key] for key in sorted(self._disabled)]

    async def changed(self, since: int) -> tuple[int, Sequence[str]]:
        return len(self._history), list({event.name for event in self._history[since:]})

    async def history(self, name: str, *, limit: int = 100) -> Sequence[PublicationEvent]:
        check_page(limit)
        return [event for event in reversed(self._history) if event.name == name][:limit]

    def _put(self, publication: Publication) -> None:
        self._rows[publication.name, place_of(publication.version)] = publication

    def _note(self, act: PublicationAct, what: Publication, at: float, by: str, reason: str = "") -> None:
        self._history.append(PublicationEvent(at, act, what.name, what.version, what.digest, by, reason))

    async def _note_pin(self, act: PublicationAct, what: Pin, at: float, by: str) -> None:
        stored = await self.find(what.name, what.version)
        digest = stored.digest if stored else ""
        self._history.append(PublicationEvent(at, act, what.name, what.version, digest, by))


class MemoryApprovals:
    """A :class:`skillyard.ports.approvals.ApprovalStore`."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str, str], Approval] = {}
        self._locks: dict[tuple[str, str, str], dict[str, str]] = {}
        self._packages: dict[tuple[str, str, str], ApprovedPackages] = {}

    async def approve(self, approval: Approval) -> None:
        check_unicode("note", approval.note)
        key = (approval.name, approval.version, approval.digest)
        self._held[key], self._locks[key] = approval, {}
        self._packages.pop(key, None)

    async def revoke(self, name: str, version: str | None = None) -> int:
        check_unicode("name", name)
        gone = [key for key in self._held if key[0] == name and version in (None, key[1])]
        for key in gone:
            del self._held[key], self._locks[key]
            self._packages.pop(key, None)
        return len(gone)

    async def find(self, name: str, version: str, digest: str) -> Approval | None:
        return self._held.get((name, version, digest))

    async def bind(self, name: str, version: str, digest: str, wanted: str, lock: str) -> str | None:
        held = self._locks.get((name, version, digest))
        return None if held is None else held.setdefault(wanted, lock)

    async def locks(self, name: str, version: str, digest: str) -> Sequence[str]:
        return sorted(set(self._locks.get((name, version, digest), {}).values()))

    async def packages(self, name: str, version: str, digest: str) -> ApprovedPackages | None:
        return self._packages.get((name, version, digest))

    async def bind_packages(
        self, name: str, version: str, digest: str, packages: ApprovedPackages
    ) -> ApprovedPackages | None:
        key = (name, version, digest)
        return self._packages.setdefault(key, packages) if key in self._held else None

    async def page(
        self, *, limit: int = 100, after: tuple[str, str, str] | None = None, name: str | None = None
    ) -> Sequence[Approval]:
        check_page(limit)
        keys = [key for key in sorted(self._held) if (after is None or key > after) and name in (None, key[0])]
        return [self._held[key] for key in keys[:limit]]
