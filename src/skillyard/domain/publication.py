"""A version of a skill that was published: immutable, named by what is in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Publication:
    """``digest`` is the bundle's (:class:`skillyard.domain.skill.Skill`), ``size`` the bytes of its ``files`` files.
    Times are UTC seconds since the epoch. A withdrawn version is not served; its name, version and digest stay taken.
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
