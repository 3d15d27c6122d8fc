"""A skill as the catalogue holds it: one immutable version of a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Any

from skillyard.domain.rules import mend_of
from skillyard.domain.secret import Delivery
from skillyard.values import dataclass


class SkillKind(StrEnum):
    ACTION = "action"
    INSTRUCTION = "instruction"


class SkillFormat(StrEnum):
    PROTOCOL = "skills-protocol"
    AGENT_SKILLS = "agent-skills"


class SkillSource(StrEnum):
    """The origin of a version: shipped with skillyard, an operator's directory, or published."""

    BUILT_IN = "built-in"
    DIRECTORY = "directory"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class RuntimeSpec:
    """The table ``[runtime]``.

    ``entrypoint`` is relative to the skill's root, ``export`` a function in it. ``preload``: packages may be imported
    ahead of its runs. ``guarantees`` are those, and walls, that its runs must have. ``image`` names by digest the image
    that its sandboxes are made of; empty for the backend's own.
    """

    language: str
    entrypoint: str
    export: str
    environment: str = "base"
    preload: bool = True
    guarantees: frozenset[str] = frozenset()
    image: str = ""


@dataclass(frozen=True, slots=True)
class SecretNeed:
    """A declared secret.

    ``delivery`` and ``hosts`` (``api.x.com``, ``*.x.com:8443``) are the author's; an operator's choice replaces them.
    """

    name: str
    optional: bool = False
    delivery: Delivery = Delivery.ENV
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Needs:
    """The declared needs of a skill beyond its own files.

    ``network`` holds rules of :mod:`skillyard.domain.network.rule` as they are written, ``tools`` full names or
    patterns of tools of MCP servers, such as ``git__git_log`` and ``git__*``.
    """

    network: tuple[str, ...] = ()
    secrets: tuple[SecretNeed, ...] = ()
    dependencies: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    limits: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SkillFile:
    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SkillLine:
    """A skill as a list shows it: its latest version."""

    name: str
    version: str
    kind: SkillKind
    format: SkillFormat
    namespace: str
    description: str
    short_description: str = ""
    tags: tuple[str, ...] = ()
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of validation or of a review. ``line`` counts from 1; 0 is the whole file.

    ``level`` is ``error`` (the skill is not valid), ``danger``, ``warning`` or ``note``; ``rule`` one of
    :data:`skillyard.domain.rules.RULES`; ``mend`` the remedy, the rule's own unless another is given.
    """

    level: str
    file: str
    line: int
    rule: str
    message: str
    mend: str = ""

    def __post_init__(self) -> None:
        if not self.mend:
            object.__setattr__(self, "mend", mend_of(self.rule))

    def __str__(self) -> str:
        """Returns one line, and an indented one with the remedy."""
        where = f"{self.file}:{self.line}" if self.line else self.file
        mend = f"\n    mend: {self.mend}" if self.mend else ""
        return f"{where}: {self.level}: {self.message} [{self.rule}]{mend}"


@dataclass(frozen=True, slots=True)
class Skill:
    """One version of a skill.

    ``root`` is an immutable snapshot (files 0444 or 0555, directories 0555), ready to be mounted.
    ``digest`` is over every file's path, mode and bytes. ``manifest`` and ``frontmatter`` are verbatim JSON
    values; ``body`` is the Markdown after the front matter.
    """

    name: str
    version: str
    kind: SkillKind
    format: SkillFormat
    description: str
    namespace: str
    root: Path
    digest: str
    manifest: Mapping[str, Any]
    frontmatter: Mapping[str, Any]
    body: str
    files: tuple[SkillFile, ...]
    runtime: RuntimeSpec | None = None
    needs: Needs = Needs()
    tags: tuple[str, ...] = ()
    short_description: str = ""
    inputs_schema: Mapping[str, Any] | None = None
    outputs_schema: Mapping[str, Any] | None = None
    findings: tuple[Finding, ...] = ()
    source: SkillSource = SkillSource.PUBLISHED
    """The default is the source that is trusted least."""

    @property
    def import_name(self) -> str:
        """Returns the dotted name below ``skills`` by which Python imports it: ``-`` becomes ``_``."""
        return self.name.replace("-", "_")

    @property
    def line(self) -> SkillLine:
        return SkillLine(
            self.name,
            self.version,
            self.kind,
            self.format,
            self.namespace,
            self.description,
            self.short_description,
            self.tags,
            self.digest,
        )
