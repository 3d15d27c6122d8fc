"""The principal that asks, and the rights that its token gives it (skills-protocol §2)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from skillyard.domain.errors import Forbidden, InvalidInput, shape
from skillyard.values import dataclass

MIN_LENGTH = 24
MAX_LENGTH = 512

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_VALUE = re.compile(rf"[!-~]{{{MIN_LENGTH},{MAX_LENGTH}}}")
_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,128}")
_AGENTS = re.compile(r"[A-Za-z0-9._@+*?\[\]!-]{1,128}")
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PROJECT_RULE = "must be a letter or digit, then letters, digits or . _ -, at most 64 in all"
_NAME_RULE = "must be a letter or digit, then letters, digits or . _ @ + -, at most 64 in all"


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
class Profile:
    """The rights that a profile leaves its tokens: patterns of methods and of skills."""

    tools: tuple[str, ...]
    skills: tuple[str, ...] = ("*",)


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller. ``skills`` are patterns of names (``*``, ``salesforce.*``); ``project`` has the secrets of its runs.
    ``agent`` is the agent that it acts for, its own name unless another is given; ``agents`` are patterns of further
    ones, which a call may name. ADMIN sees every principal's objects. ``profile`` names the profile of its token, and
    ``allowed`` has that profile's rights; a principal that lacks the rights of its profile may do nothing."""

    name: str
    scopes: frozenset[Scope] = ALL_SCOPES
    skills: tuple[str, ...] = ("*",)
    project: str = DEFAULT_PROJECT
    agent: str = ""
    agents: tuple[str, ...] = ()
    profile: str | None = None
    allowed: Profile | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.agent:
            object.__setattr__(self, "agent", self.name)

    def require(self, scope: Scope, also: frozenset[Scope] = frozenset()) -> None:
        """Raises Forbidden unless the scope or one of ``also`` was granted; ADMIN grants all."""
        if scope not in self.scopes and Scope.ADMIN not in self.scopes and self.scopes.isdisjoint(also):
            raise Forbidden(f"this token lacks the scope '{scope}'", scope=str(scope))

    def may_call(self, tool: str) -> bool:
        """Returns whether the profile allows a method; without a profile all are allowed."""
        if self.profile is None:
            return True
        return self.allowed is not None and _meets(tool, self.allowed.tools)

    def require_tool(self, tool: str) -> None:
        """Raises Forbidden for a method that the profile does not allow."""
        if not self.may_call(tool):
            self.require_profile(tool)
            rule = f"the profile '{self.profile}' of this token does not allow the tool '{tool}'"
            raise Forbidden(rule, profile=self.profile, tool=tool)

    def require_profile(self, tool: str = "") -> None:
        """Raises Forbidden for a principal that lacks the rights of its profile. It names the ``tool``."""
        if self.profile is None or self.allowed is not None:
            return
        lacks = f"{tool or 'the call'}: the settings of this server lack the profile '{self.profile}' of this token"
        remedy = f"add [profiles.{self.profile}], or use a token without a profile"
        raise Forbidden(f"{lacks}; {remedy}", profile=self.profile, **({"tool": tool} if tool else {}))

    def may_use(self, skill: str) -> bool:
        if self.profile is not None and (self.allowed is None or not _meets(skill, self.allowed.skills)):
            return False
        return _meets(skill, self.skills)

    def sees(self, owner: str) -> bool:
        return owner == self.name or Scope.ADMIN in self.scopes

    def may_act_for(self, agent: str) -> bool:
        if agent == self.agent or Scope.ADMIN in self.scopes:
            return True
        return _meets(agent, self.agents)

    def stored(self) -> dict[str, Any]:
        """Returns the rights in the JSON form that :meth:`of_stored` takes."""
        return {
            "scopes": sorted(self.scopes),
            "skills": self.skills,
            "agent": self.agent,
            "agents": self.agents,
            "profile": self.profile,
        }

    @classmethod
    def of_stored(cls, name: str, project: str, stored: Mapping[str, Any]) -> Principal:
        """Returns a principal with the rights of :meth:`stored`. Those of its profile are looked up when it acts."""
        return cls(
            name,
            frozenset(map(Scope, stored["scopes"])),
            tuple(stored["skills"]),
            project,
            stored.get("agent", ""),
            tuple(stored.get("agents", ())),
            stored.get("profile"),
        )


def _meets(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class AgentScope:
    """An agent of a project: the owner of commands, tasks, sessions and artifacts."""

    project: str
    agent: str


def agent_scope(principal: Principal, named: str | None = None) -> AgentScope:
    """Returns the scope of a call that names an agent, or that of the token's own.

    Raises InvalidInput for a text that cannot name an agent, Forbidden for an agent that the token does not allow.
    """
    if named is None:
        return AgentScope(principal.project, principal.agent)
    if not _NAME.fullmatch(named):
        raise InvalidInput("agent", _NAME_RULE, shape(named))
    if not principal.may_act_for(named):
        rule = f"agent: this token acts for the agent '{principal.agent}'; one made with --agents may name others"
        raise Forbidden(rule, agent=named)
    return AgentScope(principal.project, named)


LOCAL = Principal("local")
"""The user of an in-process runtime, and of a server without auth."""
OWNER = Principal("owner")
"""The owner of the data directory, with all scopes and all skills."""


def check_principal(principal: Principal) -> Principal:
    """Raises InvalidInput for a name or a pattern that cannot be a principal's."""
    for what, name in (("name", principal.name), ("agent", principal.agent)):
        if not _NAME.fullmatch(name):
            raise InvalidInput(what, _NAME_RULE, shape(name))
    if principal.profile is not None:
        check_profile_name("profile", principal.profile)
    check_project("project", principal.project)
    for index, pattern in enumerate(principal.skills):
        if not _PATTERN.fullmatch(pattern):
            rule = "must be a pattern of skill names such as 'sales.*', at most 128 characters"
            raise InvalidInput(f"skills[{index}]", rule, shape(pattern))
    for index, pattern in enumerate(principal.agents):
        if not _AGENTS.fullmatch(pattern):
            rule = "must be a pattern of names of agents such as 'crawler-*', at most 128 characters"
            raise InvalidInput(f"agents[{index}]", rule, shape(pattern))
    return principal


def check_token_value(value: str) -> str:
    """Returns a token's text that a user chose. It is hashed quickly, so it must not be guessable: at least 24
    characters. Raises InvalidInput."""
    if not _VALUE.fullmatch(value):
        rule = f"must be {MIN_LENGTH} to {MAX_LENGTH} printable ASCII characters without spaces"
        raise InvalidInput("value", rule, shape(value))
    return value


def check_project(where: str, project: str) -> str:
    """Returns a project's name. Raises InvalidInput."""
    if not _PROJECT.fullmatch(project):
        raise InvalidInput(where, _PROJECT_RULE, shape(project))
    return project


def check_profile_name(where: str, profile: str) -> str:
    """Returns a profile's name, which has the form of a project's. Raises InvalidInput."""
    return check_project(where, profile)
