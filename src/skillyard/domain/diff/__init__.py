"""Two versions of a skill side by side: what a reviewer has to see, what it asks for before all else."""

from __future__ import annotations

from skillyard.domain.diff.compared import Side, SkillDiff, diff_skills
from skillyard.domain.diff.facts import FactChange
from skillyard.domain.diff.files import FileChange, FileSide
from skillyard.domain.diff.needs import NeedChange

__all__ = ["FactChange", "FileChange", "FileSide", "NeedChange", "Side", "SkillDiff", "diff_skills"]
