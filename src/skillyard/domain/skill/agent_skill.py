"""Checks SKILL.md's front matter by the Agent Skills specification (agent-skills-format).

Strict: each breach of the specification is an error. Lenient: a skill loads unless it has no description or no
usable name. Keys beyond the specification's six are kept and warned of in both: it does not forbid them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from skillyard.domain.skill.name import is_servable
from skillyard.domain.skill.report import Path, Problem, Report
from skillyard.domain.skill.semver import is_version
from skillyard.values import dataclass

MAX_NAME, MAX_DESCRIPTION, MAX_COMPATIBILITY = 64, 1024, 500
KNOWN = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_SHORT_VERSION = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """Parsed front matter. ``data`` holds JSON values; ``source`` the text of every scalar as it was written, by
    path, so that an unquoted ``version: 1.10`` is not read as a number where a string is meant."""

    data: Mapping[str, Any]
    source: Mapping[Path, str]

    def text(self, *path: str) -> str | None:
        """Returns the scalar at ``path`` as a string; None when there is none."""
        return self.source.get(path)


@dataclass(frozen=True, slots=True)
class AgentSkill:
    """The declarations of an Agent Skill. ``version`` is None without a usable one."""

    name: str
    description: str
    version: str | None = None


def check_agent_skill(
    front: FrontMatter, directory: str, *, lenient: bool = False
) -> tuple[AgentSkill | None, list[Problem]]:
    """The rules for a bundle that is SKILL.md only. ``directory`` is the bundle's own name on disk."""
    report = Report(lenient)
    name = _name(report, front, directory)
    description = _description(report, front)
    _check_text(report, front, "license")
    _check_compatibility(report, front)
    _check_metadata(report, front)
    _check_allowed_tools(report, front)
    _check_keys(report, front)
    version = _version(report, front)
    skill = AgentSkill(name, description, version) if name and description else None
    return (None if report.failed else skill), report.problems


def check_companion(front: FrontMatter, name: str, *, lenient: bool = False) -> list[Problem]:
    """Checks a SKILL.md beside a skill.toml.

    Titles and any other keys are accepted. A skill that is served as an Agent Skill too should have its last segment as
    ``name`` and its title in ``metadata.title``.
    """
    report = Report(lenient)
    for key in ("name", "description", "short_description"):
        if key in front.data and front.text(key) is None:
            report.breach((key,), "type", "must be a string", front.data[key])
    if "tags" in front.data and not _is_texts(front.data["tags"]):
        report.breach(("tags",), "type", "must be a list of strings", front.data["tags"])
    title, last = front.text("name"), name.rpartition(".")[2]
    if title is not None and title != last and not lenient:
        message = f"'{last[:64]}' would be understood by Agent Skills hosts as well"
        report.warn(("name",), "front-matter-name", message, mend=f"write name: {last[:64]}, and metadata.title")
    _check_hooks(report, front)
    return report.problems


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _name(report: Report, front: FrontMatter, directory: str) -> str | None:
    name = front.text("name")
    if name is None or not name.strip():
        report.breach(("name",), "required", "is required: a string equal to the directory's name")
        return _fallback(report, directory)
    if len(name) > MAX_NAME:
        report.breach(("name",), "name-length", f"must have at most {MAX_NAME} characters", name)
    if _NAME.fullmatch(name) is None:
        rule = "must be lowercase letters a-z, digits and single hyphens, with none at the ends"
        report.breach(("name",), "name-alphabet", rule, name)
    if unicodedata.normalize("NFC", name) != unicodedata.normalize("NFC", directory):
        mend = f"write name: {directory}" if _NAME.fullmatch(directory) else "rename the directory"
        report.breach(("name",), "directory-name", "must equal the name of the skill's directory", name, mend)
    return name if is_servable(name) else _fallback(report, directory)


def _fallback(report: Report, directory: str) -> str | None:
    """The directory's name, when the front matter gives none that can stand in a path."""
    if is_servable(directory):
        return directory
    report.error(("name",), "name-unusable", "neither the name nor the directory's name can be served")
    return None


def _description(report: Report, front: FrontMatter) -> str | None:
    text = front.text("description")
    if text is None or not text.strip():
        report.error(("description",), "required", "is required: what the skill does and when to use it")
        return None
    if len(text) > MAX_DESCRIPTION:
        rule = f"must have at most {MAX_DESCRIPTION} characters"
        report.breach(("description",), "description-length", rule, text)
    return text.strip()


def _check_text(report: Report, front: FrontMatter, key: str) -> None:
    if key in front.data and front.text(key) is None:
        report.breach((key,), "type", "must be a string", front.data[key])


def _check_compatibility(report: Report, front: FrontMatter) -> None:
    _check_text(report, front, "compatibility")
    text = front.text("compatibility")
    if text is not None and not 1 <= len(text) <= MAX_COMPATIBILITY:
        rule = f"must have 1 to {MAX_COMPATIBILITY} characters"
        report.breach(("compatibility",), "compatibility-length", rule, text)


def _check_metadata(report: Report, front: FrontMatter) -> None:
    value = front.data.get("metadata", {})
    if not isinstance(value, Mapping):
        report.breach(("metadata",), "type", "must be a map of strings", value)
        return
    for key, item in value.items():
        if front.text("metadata", key) is None:
            report.breach(("metadata", key), "type", "must be a string", item)


def _check_allowed_tools(report: Report, front: FrontMatter) -> None:
    """A list is common in the wild and means the same as the specified string with spaces."""
    if "allowed-tools" in front.data and front.text("allowed-tools") is None:
        value = front.data["allowed-tools"]
        if not _is_texts(value):
            report.breach(("allowed-tools",), "type", "must be a string with spaces between patterns", value)


def _check_keys(report: Report, front: FrontMatter) -> None:
    for key in front.data:
        if key not in KNOWN and key != "hooks":
            report.warn((key,), "unknown-key", "is not in the specification; it is kept and has no effect")
    _check_hooks(report, front)


def _check_hooks(report: Report, front: FrontMatter) -> None:
    if "hooks" in front.data:
        report.warn(("hooks",), "hooks", "asks some hosts to run commands by themselves; it has no effect here")


def _version(report: Report, front: FrontMatter) -> str | None:
    """``metadata.version``; ``1`` and ``1.4`` are taken as 1.0.0 and 1.4.0."""
    text = front.text("metadata", "version")
    if text is None or not text.strip():
        return None
    padded = f"{text}{'.0' * (2 - text.count('.'))}" if _SHORT_VERSION.fullmatch(text) else text
    if not is_version(padded):
        report.warn(("metadata", "version"), "semver", "is no semantic version: the content's hash is used", text)
        return None
    if padded != text:
        report.warn(("metadata", "version"), "semver", f"is taken as '{padded}'")
    return padded
