"""The in-memory twin of the approvals."""

from __future__ import annotations

from collections.abc import Sequence

from skillyard.domain.checks import check_page, check_unicode
from skillyard.domain.skill.trust import Approval, ApprovedPackages


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
