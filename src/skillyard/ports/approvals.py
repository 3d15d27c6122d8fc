"""The decisions of operators about the needs that skills declare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from skillyard.domain.skill.trust import Approval, ApprovedPackages


class ApprovalStore(Protocol):
    """Approvals, each of one name, version and digest.

    Other bytes under the same version have none.
    """

    async def approve(self, approval: Approval) -> None:
        """Replaces the approval of the same name, version and digest.

        Its locks and packages are dropped. Raises InvalidInput for half a surrogate pair in the note.
        """
        ...

    async def revoke(self, name: str, version: str | None = None) -> int:
        """Every digest of the version, of every version when it is None; how many went."""
        ...

    async def find(self, name: str, version: str, digest: str) -> Approval | None: ...

    async def bind(self, name: str, version: str, digest: str, wanted: str, lock: str) -> str | None:
        """Returns the lock of the requirements ``wanted``; binds ``lock`` where there is none. None without such an
        approval."""
        ...

    async def locks(self, name: str, version: str, digest: str) -> Sequence[str]:
        """Returns the locks that sets of requirements are bound to, sorted."""
        ...

    async def packages(self, name: str, version: str, digest: str) -> ApprovedPackages | None:
        """Returns the packages that the approval is of; None before :meth:`bind_packages`."""
        ...

    async def bind_packages(
        self, name: str, version: str, digest: str, packages: ApprovedPackages
    ) -> ApprovedPackages | None:
        """Returns the packages of an approval, or None without such an approval.

        ``packages`` become its packages where it has none yet.
        """
        ...

    async def page(
        self, *, limit: int = 100, after: tuple[str, str, str] | None = None, name: str | None = None
    ) -> Sequence[Approval]:
        """Returns approvals by name, version and digest, each in the order of code points.

        ``after`` are those of the last one seen. Raises InvalidInput for a limit outside 1 to 1000.
        """
        ...
