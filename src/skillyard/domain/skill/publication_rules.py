"""What speaks against publishing or pinning a version: the words are the same wherever it is found out."""

from __future__ import annotations

from skillyard.domain.errors import Forbidden, InvalidInput, VersionTaken
from skillyard.domain.skill.publication import Publication


def claim_refusal(name: str, owner: str | None, project: str) -> Forbidden | None:
    """Why ``project`` may not change what ``owner`` published under ``name``."""
    if owner in (None, project):
        return None
    return Forbidden(f"the skill name '{name}' belongs to another project, which published it first", skill=name)


def version_refusal(stored: Publication, wanted: Publication) -> VersionTaken | None:
    """Why ``wanted`` cannot be published when ``stored`` has its place; None when they are the same."""
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
    """For a version that a directory of the operator's serves with other content, which has ``digest``."""
    rule = f"'{wanted.name}' {wanted.version} is served from a directory of this server with other content: "
    return VersionTaken(
        "version", f"{rule}{digests(digest, wanted.digest)}; raise the version", **taken_facts(wanted, digest)
    )


def pin_refusal(stored: Publication) -> InvalidInput:
    """For a pin to a version that is withdrawn."""
    rule = f"'{stored.name}' {stored.version} was withdrawn: restore it first, or pin another"
    return InvalidInput("version", rule, skill=stored.name)


def digests(stored: str, offered: str) -> str:
    return f"stored sha256 {stored}, offered {offered}"


def taken_facts(wanted: Publication, digest: str) -> dict[str, str]:
    return {"skill": wanted.name, "version": wanted.version, "stored_digest": digest, "offered_digest": wanted.digest}
