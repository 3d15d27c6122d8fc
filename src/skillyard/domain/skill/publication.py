"""A version of a skill that was published: immutable, named by what is in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from skillyard.domain.errors import QuotaExceeded
from skillyard.domain.skill.semver import Version

MAX_REASON = 500
"""Characters of why a version was withdrawn."""


@dataclass(frozen=True, slots=True)
class Publication:
    """``digest`` is the bundle's (:class:`skillyard.domain.skill.skill.Skill`), ``size`` the bytes of its ``files``
    files. Times are UTC seconds since the epoch. A withdrawn version is not served; its name, version and digest stay
    taken. ``project`` is the one that the name belongs to: the first to publish it.
    """

    name: str
    version: str
    digest: str
    published_at: float
    published_by: str
    project: str
    size: int
    files: int
    withdrawn_at: float | None = None
    withdrawn_by: str = ""
    reason: str = ""

    @property
    def withdrawn(self) -> bool:
        return self.withdrawn_at is not None


@dataclass(frozen=True, slots=True)
class Pin:
    """Somebody's word on which version of ``name`` is the latest."""

    name: str
    version: str
    pinned_at: float
    pinned_by: str


class PublicationAct(StrEnum):
    PUBLISHED = "published"
    WITHDRAWN = "withdrawn"
    RESTORED = "restored"
    PINNED = "pinned"
    UNPINNED = "unpinned"


@dataclass(frozen=True, slots=True)
class PublicationEvent:
    """One line of a name's history, which is only ever added to. ``digest`` is empty for a pin to a version that was
    not published but lies in a directory."""

    at: float
    act: PublicationAct
    name: str
    version: str
    digest: str
    principal: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PublicationLimits:
    """What all versions that one project ever published may be: how many, and bytes together."""

    count: int = 100_000
    bytes: int = 64 * 1024**3

    def check(self, count: int, stored: int, size: int) -> None:
        """Raises QuotaExceeded when one more version of ``size`` bytes would pass them."""
        if count + 1 > self.count:
            raise _refusal(f"would pass the quota of {self.count} published versions", "count", self.count)
        if stored + size > self.bytes:
            raise _refusal(f"would pass the quota of {self.bytes} published bytes", "bytes", self.bytes)


def _refusal(rule: str, limit: str, maximum: int) -> QuotaExceeded:
    return QuotaExceeded("bundle", f"{rule} of this project", limit=limit, maximum=maximum)


def place_of(version: str) -> str:
    """The version without its build metadata: two with the same place are one version (semver §10). Raises
    InvalidInput."""
    parsed = Version.parse(version)
    return str(Version(parsed.major, parsed.minor, parsed.patch, parsed.pre))
