"""Where skills are found: projects, checkouts of skill repositories, homes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skillyard.stores.skills.catalogue.search import ScanLimits, Tree, walk
from tests.unit.stores.skills.skilldirs import action, agent_skill

LIMITS = ScanLimits()


def look(root: Path, before: Tree | None = None) -> Tree:
    [tree] = walk([str(root)], LIMITS, [before] if before else [])
    return tree


def found(root: Path) -> list[str]:
    tree = look(root)
    found = dict(tree.bundles())
    assert found == {path: tree.place(path) for path in found}
    return [os.path.relpath(bundle, root) for bundle in sorted(found, key=found.__getitem__)]


def test_a_project_shows_its_agent_skills_and_nothing_else(tmp_path: Path) -> None:
    agent_skill(tmp_path / ".claude/skills", "pdf-tools")
    agent_skill(tmp_path / ".agents/skills", "mail-merge")
    action(tmp_path / "skills", "acme.text.count")
    agent_skill(tmp_path / "tests/data", "broken")
    agent_skill(tmp_path / ".claude/cache", "old")
    agent_skill(tmp_path / ".github", "other")
    assert found(tmp_path) == [".agents/skills/mail-merge", ".claude/skills/pdf-tools", "skills/acme.text.count"]
    [note] = look(tmp_path).notes
    assert (note.level, note.rule) == ("note", "scan-project")
    assert ".agents/skills, .claude/skills, skills" in note.message


def test_the_two_homes_may_be_one(tmp_path: Path) -> None:
    agent_skill(tmp_path / ".agents/skills", "pdf-tools")
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude/skills").symlink_to(tmp_path / ".agents/skills")
    assert found(tmp_path) == [".agents/skills/pdf-tools"]


def test_single_skills_may_be_linked_from_the_other_home(tmp_path: Path) -> None:
    agent_skill(tmp_path / ".agents/skills", "pdf-tools")
    (tmp_path / ".claude/skills").mkdir(parents=True)
    (tmp_path / ".claude/skills/pdf-tools").symlink_to(tmp_path / ".agents/skills/pdf-tools")
    assert found(tmp_path) == [".agents/skills/pdf-tools"]


def test_a_home_itself_may_be_named(tmp_path: Path) -> None:
    agent_skill(tmp_path / ".claude/skills", "pdf-tools")
    assert found(tmp_path / ".claude/skills") == ["pdf-tools"]


def test_the_folders_of_a_skill_repository(tmp_path: Path) -> None:
    for folder in (".curated", ".experimental", ".system"):
        agent_skill(tmp_path / "skills" / folder, f"from-{folder[1:]}")
    agent_skill(tmp_path / "skills/.hidden", "never")
    agent_skill(tmp_path / "plugins/office/skills", "letters")
    agent_skill(tmp_path / "node_modules/x/skills", "never")
    assert found(tmp_path) == [
        "plugins/office/skills/letters",
        "skills/.curated/from-curated",
        "skills/.experimental/from-experimental",
        "skills/.system/from-system",
    ]


def test_a_skill_with_a_home_in_it_is_a_skill(tmp_path: Path) -> None:
    root = agent_skill(tmp_path, "pdf-tools")
    agent_skill(root / ".claude/skills", "inner")
    assert found(root) == ["."]


@pytest.mark.parametrize("later", [".claude/skills", ".agents/skills"])
def test_a_directory_that_becomes_a_project_is_noticed(tmp_path: Path, later: str) -> None:
    (tmp_path / later).parent.mkdir()
    before = look(tmp_path)
    agent_skill(tmp_path / later, "pdf-tools")
    assert look(tmp_path, before) != before
    assert found(tmp_path) == [f"{later}/pdf-tools"]
