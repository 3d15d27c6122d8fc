"""Published versions of skills, and the refusals to replace them."""

from __future__ import annotations

from enum import StrEnum

from skillyard.domain.errors import Forbidden, InvalidInput, QuotaExceeded, VersionTaken
from skillyard.domain.skill.semver import Version
from skillyard.values import dataclass

MAX_REASON = 500
"""Characters of the reason for a withdrawal."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A published version.

    ``digest`` is the bundle's (:class:`skillyard.domain.skill.skill.Skill`), ``size`` the bytes of its ``files``
    files. Times are UTC seconds since the epoch. A withdrawn version is not served; its name, version and digest stay
    taken. ``project`` owns the name, as the first that published it.
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
    """A principal's choice of the latest version of ``name``."""

    name: str
    version: str
    pinned_at: float
    pinned_by: str


@dataclass(frozen=True, slots=True)
class Disabled:
    """A project's choice that no agent of it uses the skill ``name``."""

    project: str
    name: str
    at: float
    by: str


class PublicationAct(StrEnum):
    PUBLISHED = "published"
    WITHDRAWN = "withdrawn"
    RESTORED = "restored"
    PINNED = "pinned"
    UNPINNED = "unpinned"


@dataclass(frozen=True, slots=True)
class PublicationEvent:
    """One entry of a name's history, to which entries are only added.

    ``digest`` is empty for a pin to a version that lies in a directory and was not published.
    """

    at: float
    act: PublicationAct
    name: str
    version: str
    digest: str
    principal: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PublicationLimits:
    """The most versions, and their most bytes together, that one project may ever publish."""

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
    """Returns the version without build metadata, which does not tell versions apart.

    Raises InvalidInput.
    """
    parsed = Version.parse(version)
    return str(Version(parsed.major, parsed.minor, parsed.patch, parsed.pre))


def claim_refusal(name: str, owner: str | None, project: str) -> Forbidden | None:
    """Returns the refusal to let ``project`` change a skill of ``owner``; None when it may."""
    if owner in (None, project):
        return None
    return Forbidden(f"the skill name '{name}' belongs to another project, which published it first", skill=name)


def version_refusal(stored: Publication, wanted: Publication) -> VersionTaken | None:
    """Returns the refusal of ``wanted`` in the place of ``stored``; None when they are equal."""
    if stored.digest == wanted.digest and stored.version == wanted.version:
        return withdrawn_refusal(stored) if stored.withdrawn else None
    rule = f"'{stored.name}' {stored.version} was published with other content, which never changes: "
    rule += digests(stored.digest, wanted.digest)
    if stored.version != wanted.version:
        rule += f"; {wanted.version} does not differ from it, since build metadata does not count"
    return VersionTaken("version", f"{rule}; raise the version", **taken_facts(wanted, stored.digest))


def withdrawn_refusal(stored: Publication) -> VersionTaken:
    rule = f"'{stored.name}' {stored.version} was published and withdrawn; restore it, or publish a higher version"
    return VersionTaken("version", rule, **taken_facts(stored, stored.digest))


def served_refusal(wanted: Publication, digest: str) -> VersionTaken:
    """Returns the refusal of a version that a directory serves with the other ``digest``."""
    rule = f"'{wanted.name}' {wanted.version} is served from a directory of this server with other content: "
    return VersionTaken(
        "version", f"{rule}{digests(digest, wanted.digest)}; raise the version", **taken_facts(wanted, digest)
    )


def pin_refusal(stored: Publication) -> InvalidInput:
    """Returns the refusal of a pin to a withdrawn version."""
    rule = f"'{stored.name}' {stored.version} was withdrawn: restore it first, or pin another"
    return InvalidInput("version", rule, skill=stored.name)


def digests(stored: str, offered: str) -> str:
    return f"stored sha256 {stored}, offered {offered}"


def taken_facts(wanted: Publication, digest: str) -> dict[str, str]:
    return {"skill": wanted.name, "version": wanted.version, "stored_digest": digest, "offered_digest": wanted.digest}
