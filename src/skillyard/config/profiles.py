"""``[profiles.NAME]``: named allow-lists, chosen by token.

A profile names the methods that its tokens may call. It can narrow the skills that they use, and the limits, the
network and the isolation of their runs; it widens nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from skillyard.config.network import Rules
from skillyard.config.section import Section
from skillyard.domain.errors import InvalidInput, QuotaExceeded, shape, shown
from skillyard.domain.principal import Principal, Profile, check_profile_name
from skillyard.domain.work.limits import MINIMUM
from skillyard.values import dataclass

DISCOVER = "rpc.discover"
"""The method that every profile has: it lists those that its tokens may call."""
MOST_TOOLS = 1000
_KEY = "allowed_tools"
_TOOL = re.compile(r"[!-~]{1,128}")
_SKILL = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,128}")


class ProfileLimits(Section):
    """The largest values that runs of the profile may ask for, below those of `limits.max`."""

    model_config = ConfigDict(title="profiles.limits")

    timeout_ms: int | None = Field(default=None, ge=MINIMUM.timeout_ms, description="Longest time of a run.")
    memory_mb: int | None = Field(default=None, ge=MINIMUM.memory_mb, description="Most memory of a run.")
    cpus: float | None = Field(default=None, ge=MINIMUM.cpus, description="Most processor cores of a run.")
    pids: int | None = Field(default=None, ge=MINIMUM.pids, description="Most processes and threads of a run.")
    disk_mb: int | None = Field(default=None, ge=MINIMUM.disk_mb, description="Most file space of a run.")

    @cached_property
    def most(self) -> dict[str, int | float]:
        """The limits that are given, by name."""
        return self.model_dump(exclude_none=True)


class ProfileQuotas(Section):
    """The most that one token of the profile may have or call, below the server's bounds."""

    model_config = ConfigDict(title="profiles.quotas")

    tasks: int | None = Field(
        default=None,
        ge=0,
        description="Tasks of one token that have not ended, among them steps of jobs; and as many services.",
    )
    jobs: int | None = Field(default=None, ge=0, description="Jobs of one token that have not ended.")
    sessions: int | None = Field(
        default=None, ge=0, description="Live sessions that one token made, below `sessions.most_each`."
    )
    calls: int | None = Field(
        default=None,
        ge=1,
        description="Calls of methods by one token within `calls_window_s`. Those beyond it are refused with Busy and "
        "`retry_after_ms`, and do not count. The server counts in memory, and anew after a restart.",
    )
    calls_window_s: float = Field(
        default=60.0, gt=0, le=86_400, description="Seconds for which `calls` counts, from a token's first call on."
    )


class ProfileSettings(Section):
    """An allow-list under a name, for tokens made with `token create --profile NAME`."""

    model_config = ConfigDict(title="profiles")

    allowed_tools: tuple[str, ...] = Field(
        default=(),
        description="Methods that its tokens may call: names, or patterns such as `skills.*`. All others are refused, "
        "and `rpc.discover` does not list them.",
    )
    file: Path | None = Field(
        default=None,
        description="YAML file whose list `allowed_tools` takes the place of that setting: a profile of CommonGround "
        "as it is.",
    )
    skills: tuple[str, ...] = Field(
        default=("*",), description="Patterns of names of skills that its tokens may use, of those that a token allows."
    )
    limits: ProfileLimits = ProfileLimits()
    quotas: ProfileQuotas = ProfileQuotas()
    network: Rules | None = Field(
        default=None,
        description="Bound of what its runs reach, below `network.rules`: rules, `none`, or `open` for no bound.",
        json_schema_extra={"kind": "`none` or `open` or list of text"},
    )
    isolation: str | None = Field(
        default=None,
        description="Boundary of its runs, one of `policy.isolation` and `policy.isolations`. A run that names another "
        "is refused.",
    )

    @cached_property
    def tools(self) -> tuple[str, ...]:
        """The allowed tools, of the file where one is named."""
        return self.allowed_tools if self._read is None else self._read.tools

    @property
    def ignored(self) -> tuple[str, ...]:
        """The keys of the file that have no effect here."""
        return () if self._read is None else self._read.ignored

    @cached_property
    def _read(self) -> ProfileFile | None:
        return None if self.file is None else read_profile(self.file)

    @field_validator("file")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        return None if value is None else value.expanduser().absolute()

    @field_validator("skills")
    @classmethod
    def _check_skills(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            if not _SKILL.fullmatch(pattern):
                raise ValueError(f"must be patterns of skill names such as 'sales.*' (got {shown(pattern)})")
        return value

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        if self.file is not None and self.allowed_tools:
            raise ValueError("names a file and allowed_tools; give one of them")
        if not self.tools:
            raise ValueError("allows no tool; give allowed_tools, such as ['skills.*'], or a file")
        check_tools(self.tools)
        return self


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """The allow-list of a YAML file, and its keys that have no effect here."""

    tools: tuple[str, ...]
    ignored: tuple[str, ...]


def read_profile(file: Path) -> ProfileFile:
    """Returns the allow-list of a YAML file. Raises ValueError for one that cannot be read or has none."""
    from skillyard.yaml_values import MAX_BYTES

    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        return parse_profile(data.decode())
    except OSError as error:
        raise ValueError(f"the file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the file {file} is not UTF-8 text") from None
    except ValueError as error:
        raise ValueError(f"the file {file}: {error}") from None


def parse_profile(text: str) -> ProfileFile:
    """Returns the allow-list in a YAML text. Raises ValueError with the line and the rule."""
    from skillyard.yaml_values import Document, YamlRefused  # not where no profile names a file

    try:
        document = Document(text).value
    except YamlRefused as error:
        raise ValueError(f"line {error.line} {error}") from None
    tools = document.get(_KEY) if isinstance(document, dict) else None
    if not isinstance(tools, list) or not tools:
        raise ValueError(f"must have a list '{_KEY}' with at least one name (got {shape(tools)})")
    return ProfileFile(check_tools(tools), tuple(sorted(key for key in document if key != _KEY)))


def check_tools(tools: Any) -> tuple[str, ...]:
    """Returns the names and patterns of methods. Raises ValueError."""
    if len(tools) > MOST_TOOLS:
        raise ValueError(f"{_KEY} must have at most {MOST_TOOLS} entries")
    for tool in tools:
        if not isinstance(tool, str) or not _TOOL.fullmatch(tool):
            rule = "must be names or patterns of methods, such as 'skills.load' or 'skills.*', at most 128 characters"
            raise ValueError(f"{_KEY} {rule} (got {shown(tool)})")
    return tuple(tools)


def named(given: Mapping[str, ProfileSettings]) -> dict[str, ProfileSettings]:
    """Returns the profiles. Raises InvalidInput for a name that a token cannot have."""
    for name in given:
        check_profile_name("profiles", name)
    return dict(given)


def bound(profiles: Mapping[str, ProfileSettings], principal: Principal) -> Principal:
    """Returns the principal with the rights of its profile. One whose profile is not there may call nothing."""
    section = None if principal.profile is None else profiles.get(principal.profile)
    if section is None:
        return principal
    return replace(principal, allowed=Profile((*section.tools, DISCOVER), section.skills))


def check_quota(profiles: Mapping[str, ProfileSettings], principal: Principal, what: str, held: int) -> None:
    """Raises QuotaExceeded for a token that has all of ``what`` that its quota allows."""
    section = profiles.get(principal.profile or "")
    most = None if section is None else getattr(section.quotas, what)
    if most is not None and held >= most:
        name = f"profiles.{principal.profile}.quotas.{what}"
        rule = f"this token has {held} {what} that have not ended, and its profile '{principal.profile}' allows {most}"
        raise QuotaExceeded(what, f"{rule}; wait for one, or cancel it", limit=name, maximum=most)


def check_isolations(profiles: Mapping[str, ProfileSettings], offered: frozenset[str]) -> None:
    """Raises InvalidInput for a profile with an isolation that policy does not offer."""
    for name, section in profiles.items():
        if section.isolation is not None and section.isolation not in offered:
            rule = f"must be one that policy.isolation and policy.isolations name: {', '.join(sorted(offered))}"
            raise InvalidInput(f"profiles.{name}.isolation", rule, shown(section.isolation))
