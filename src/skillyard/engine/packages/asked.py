"""The packages that a run asks for.

A request asks by parameter, code by its inline metadata (PEP 723), a skill by its manifest.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping
from typing import Any

from skillyard.config.packages import EnvironmentSettings, PackagesSettings
from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.package.environment import Wanted
from skillyard.domain.package.names import admits, normalized, within
from skillyard.domain.package.script_metadata import OPENING, read_script_metadata
from skillyard.domain.skill.requirement import is_requirement
from skillyard.domain.skill.skill import Skill
from skillyard.engine.backends import Offer
from skillyard.engine.packages.environment import platform_of
from skillyard.values import dataclass

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


def asked_packages(params: Mapping[str, Any], code: str | None) -> tuple[str, ...]:
    """Requirements (PEP 508), sorted, each once. Raises InvalidInput for what is none, and for malformed metadata."""
    given = params.get("packages") or ()
    for index, text in enumerate(given):
        if not is_requirement(text):
            rule = "must be a requirement such as 'numpy>=2,<3'; no URLs, paths or options"
            raise InvalidInput(f"packages[{index}]", rule, shown(text))
    declared = _declared(code) if code and OPENING in code else ()
    return Wanted.of([*given, *declared]).requirements if given or declared else ()


def _declared(code: str) -> tuple[str, ...]:
    metadata = read_script_metadata(code)
    if metadata is None:
        return ()
    for problem in metadata.problems:
        if not problem.harmless:
            raise InvalidInput("code", f"line {problem.line}: {problem.message}")
    return metadata.dependencies


async def check_python(code: str, offer: Offer, environment: str, image: str) -> None:
    """Raises InvalidInput for code that wants another Python than its sandbox has."""
    metadata = read_script_metadata(code)
    if metadata is None or not metadata.requires_python:
        return
    there = await platform_of(offer, environment, image=image)
    python = platform.python_version() if there is None else there.version
    if not metadata.admits_python(python):
        rule = f"requires-python is '{metadata.requires_python}', and its sandbox has Python {python}"
        raise InvalidInput("code", rule)


def why_refused(requirements: Iterable[str], config: PackagesSettings) -> str:
    """Why code may not have these packages, naming the setting that says so; empty when it may."""
    names = sorted({required_name(text) for text in requirements})
    if denied := [name for name in names if not admits(config.allow, name)]:
        return f"packages.allow admits no package {_quoted(denied)}"
    if denied := [name for name in names if not admits(config.run_code, name)]:
        return f"code asks for {_quoted(denied)}, and packages.run_code does not admit that"
    return ""


def required_name(requirement: str) -> str:
    """The package that a requirement asks for, in normal form (PEP 503)."""
    found = _NAME.match(requirement)
    return normalized(found[0]) if found else ""


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


_NEED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[\s*\])?\s*(.*)", re.DOTALL)


def missing(needs: Iterable[str], installed: Mapping[str, str]) -> list[str]:
    """Returns the requirements that ``installed`` does not meet, as they were written.

    ``installed`` has versions by normalized name. A name and numeric bounds (``numpy>=1.26,<3``) are understood.
    Everything else, extras too, counts as missing.
    """
    return [need for need in needs if not _met(need, installed)]


def _met(need: str, installed: Mapping[str, str]) -> bool:
    match = _NEED.fullmatch(need.strip())
    version = installed.get(normalized(match[1])) if match else None
    if match is None or version is None:
        return False
    return within(version, match[2].strip("() ")) is True


@dataclass(frozen=True, slots=True)
class Asked:
    """``skill`` is the one that declares ``requirements``, None for the request itself."""

    requirements: tuple[str, ...]
    skill: Skill | None = None

    def __str__(self) -> str:
        return "the request" if self.skill is None else f"'{self.skill.name}'"


def union(definition: EnvironmentSettings, asked: Iterable[Asked]) -> Wanted:
    """One set for the named environment and all that is asked for on top of it."""
    return Wanted.of([*definition.packages, *(text for who in asked for text in who.requirements)])
