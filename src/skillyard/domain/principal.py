"""Who is asking, and what a token lets them do (skills-protocol §2)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from skillyard.domain.errors import Forbidden


class Scope(StrEnum):
    DISCOVER = "discover"
    EXECUTE = "execute"
    RUN_CODE = "run_code"
    BLOBS = "blobs"
    PUBLISH = "publish"
    ADMIN = "admin"


DEFAULT_PROJECT = "default"
ALL_SCOPES: frozenset[Scope] = frozenset(Scope)


@dataclass(frozen=True, slots=True)
class Principal:
    """``skills`` are patterns of names (``*``, ``salesforce.*``); ADMIN sees every principal's objects. ``project``
    says whose secrets its runs get."""

    name: str
    scopes: frozenset[Scope] = ALL_SCOPES
    skills: tuple[str, ...] = ("*",)
    project: str = DEFAULT_PROJECT

    def require(self, scope: Scope) -> None:
        """Raises Forbidden unless the scope was granted; ADMIN grants all."""
        if scope not in self.scopes and Scope.ADMIN not in self.scopes:
            raise Forbidden(f"this token lacks the scope '{scope}'", scope=str(scope))

    def may_use(self, skill: str) -> bool:
        return any(fnmatchcase(skill, pattern) for pattern in self.skills)

    def sees(self, owner: str) -> bool:
        return owner == self.name or Scope.ADMIN in self.scopes


LOCAL = Principal("local")
"""The user of an in-process runtime, and of a server without auth."""
