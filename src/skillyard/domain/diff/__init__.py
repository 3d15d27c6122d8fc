"""Two versions of a skill beside each other: first of all how their needs differ."""

from __future__ import annotations

from collections.abc import Mapping

from skillyard.domain.diff.declared import FactChange, NeedChange, diff_facts, diff_needs
from skillyard.domain.diff.files import FileChange, FileSide, diff_files
from skillyard.domain.skill.skill import Skill
from skillyard.values import dataclass

__all__ = ["FactChange", "FileChange", "FileSide", "NeedChange", "Side", "SkillDiff", "diff_skills"]


@dataclass(frozen=True, slots=True)
class Side:
    """A version and its files by path."""

    skill: Skill
    files: Mapping[str, FileSide]


@dataclass(frozen=True, slots=True)
class SkillDiff:
    """The differences of two versions, in the order in which a reviewer reads them."""

    needs: tuple[NeedChange, ...]
    facts: tuple[FactChange, ...]
    files: tuple[FileChange, ...]

    @property
    def same(self) -> bool:
        return not (self.needs or self.facts or self.files)

    @property
    def widens(self) -> bool:
        return any(change.widens for change in self.needs)


def diff_skills(old: Side, new: Side) -> SkillDiff:
    """Returns the differences, within bounds of time and size.

    Reads only files that changed; raises the errors of reading them.
    """
    return SkillDiff(
        tuple(diff_needs(old.skill.needs, new.skill.needs)),
        tuple(diff_facts(old.skill, new.skill)),
        tuple(diff_files(old.files, new.files)),
    )
