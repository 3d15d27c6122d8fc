"""Publications as answers show them. Times are UTC seconds since the epoch."""

from __future__ import annotations

from typing import Any

from skillyard.domain.skill.publication import Publication, PublicationEvent
from skillyard.domain.skill.skill import Skill


def publication_view(told: Publication) -> dict[str, Any]:
    """``state`` is ``published`` or ``withdrawn``; who withdrew it, when and why stand there only then."""
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
    """A version that nobody published: ``state`` is where it is served from, ``directory`` or ``built-in``."""
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
