"""The skills that are mounted in a run: the finders for their code, and the variables that say where they are.

Agent Skills tell their reader to import from the root of the skill (``from core.gif import Builder``) or to stand in
``scripts/``. So a top-level module that nothing else provides is looked for there last, in mounted skills that have no
entrypoint; where several have one of that name, the import fails and names the ways to say which.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

from .imports import Skill, SkillFinder, import_name, top_level_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Mounts = Mapping[str, Mapping[str, str | None]]

SKILLS_DIR = "SKILLS_DIR"
"""The directory that holds the mounted skills by name: /skills, or where that is without a root of our own."""
SKILL_DIR = "SKILL_DIR"
"""The root of the executed skill, or of the only one that is mounted."""


def show_skills(request: Mapping[str, Any]) -> None:
    """Let what comes after import and find the skills of ``request``."""
    skills: Mounts = request["skills"]
    sys.meta_path.insert(0, SkillFinder(skills))
    if not skills:
        return
    texts = {name: mount["root"] or "" for name, mount in skills.items() if mount["entry"] is None}
    if texts:
        sys.meta_path.append(RootFinder(texts))
    os.environ.update(_variables(skills, request["skill"]))


def _variables(skills: Mounts, executed: str | None) -> dict[str, str]:
    found = {SKILLS_DIR: os.path.dirname(next(iter(skills.values()))["root"] or "")}
    name = executed or (next(iter(skills)) if len(skills) == 1 else None)
    if name is not None:
        found[SKILL_DIR] = skills[name]["root"] or ""
    return found


class RootFinder:
    """The last meta-path finder. ``roots`` of skills without an entrypoint, by name."""

    def __init__(self, roots: Mapping[str, str]) -> None:
        self._skills = [Skill(import_name(name), root, None) for name, root in roots.items()]
        self._names: list[set[str]] | None = None

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Raises ModuleNotFoundError for a name that several skills have."""
        if path is not None or "." in fullname:
            return None
        if self._names is None:
            self._names = [top_level_names(skill.path) for skill in self._skills]
        having = [skill for skill, names in zip(self._skills, self._names, strict=True) if fullname in names]
        if len(having) > 1:
            ways = ", ".join(f"{skill.package}.{fullname}" for skill in having[:20])
            raise ModuleNotFoundError(
                f"several mounted skills have a module named {fullname!r}; import one of {ways}", name=fullname
            )
        return PathFinder.find_spec(fullname, having[0].path, target) if having else None
