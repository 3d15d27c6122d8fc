"""The skill under test: its bundle in a directory with its examples."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skillyard.domain.skill.example import Example
from skillyard.domain.skill.skill import Finding, Skill, SkillKind
from skillyard.stores.skills.tree import Caps, Tree, read_tree
from skillyard.stores.skills.validation.bundle import Bundle, Place, check_bundle
from skillyard.stores.skills.validation.companions import read_examples
from skillyard.stores.skills.validation.findings import Findings


@dataclass(frozen=True, slots=True)
class Subject:
    directory: Path
    skill: Skill
    tree: Tree
    examples: Sequence[Example]

    def data(self, path: str) -> bytes:
        return self.tree.files[path].data


def read_subject(path: Path | str) -> tuple[Subject | None, Sequence[Finding]]:
    """None with the findings when the skill, or one of its examples, is not valid. Strict, but for the form of an Agent
    Skill's examples, which has no other judge."""
    directory = Path(os.path.abspath(path))  # noqa: PTH100 - the directory's own name counts, not a link's target
    if not directory.is_dir():
        return None, [Finding("error", str(path), 0, "no-directory", "is not a directory that holds a skill")]
    tree, refused = read_tree(directory, Caps())
    if tree is None:
        return None, refused
    skill, findings = check_bundle(Bundle(tree, Place.of(directory), directory, lenient=False))
    if skill is None:
        return None, findings
    own = Findings()
    examples = read_examples(tree, own, executable=skill.kind is SkillKind.ACTION, lenient=False)
    if own.failed:
        return None, own
    return Subject(directory, skill, tree, examples), findings
