"""The packages that bundles of both formats ask for: requirements files and inline metadata of scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillyard.domain.package.script_metadata import ScriptMetadata
from skillyard.domain.rules import RULES
from skillyard.domain.skill.skill import Finding, Skill
from skillyard.stores.skills.tree import Caps, read_tree
from skillyard.stores.skills.validation.bundle import Bundle, Place, check_bundle, validate
from skillyard.stores.skills.validation.companions import MAX_DEPENDENCIES, MAX_REQUIREMENTS_BYTES
from tests.unit.stores.skills.skilldirs import action, agent_skill, write

INLINE = '# /// script\n# requires-python = ">=3.11"\n# dependencies = ["rich>=13", "httpx"]\n# ///\n'


def loaded(directory: Path, *, lenient: bool = True) -> tuple[Skill | None, list[Finding]]:
    tree, findings = read_tree(directory, Caps())
    assert tree is not None, findings
    return check_bundle(Bundle(tree, Place.of(directory), directory, lenient))


def dependencies(directory: Path) -> tuple[str, ...]:
    skill, findings = loaded(directory)
    assert skill is not None, findings
    return skill.needs.dependencies


def test_an_agent_skill_asks_in_every_place(tmp_path: Path) -> None:
    files = {
        "requirements.txt": "pillow>=10.0.0\nnumpy>=1.24.0",
        "scripts/requirements.txt": "anthropic>=0.39.0\npillow>=10.0.0\n",
        "scripts/fill.py": INLINE,
        "scripts/lib/deep.py": INLINE.replace("rich", "never"),
        "references/requirements.txt": "never\n",
        "example.py": INLINE.replace("rich", "never"),
    }
    directory = write(agent_skill(tmp_path), files)
    found = ("pillow>=10.0.0", "numpy>=1.24.0", "anthropic>=0.39.0", "rich>=13", "httpx")
    assert dependencies(directory) == found
    assert validate(directory) == []


def test_an_action_skill_asks_in_every_place(tmp_path: Path) -> None:
    directory = write(
        action(tmp_path),
        {"code/requirements.txt": "numpy\n", "requirements.txt": "pandas\n", "code/tool.py": INLINE},
    )
    manifest = directory / "skill.toml"
    manifest.write_text(manifest.read_text() + '[dependencies]\npython = ["six"]\n')
    assert dependencies(directory) == ("six", "pandas", "numpy", "rich>=13", "httpx")


@pytest.mark.parametrize(
    ("path", "text", "line", "rule"),
    [
        ("requirements.txt", "ok\n-r other.txt\n", 2, "requirement"),
        ("scripts/requirements.txt", "-e .\n", 1, "requirement"),
        ("scripts/x.py", "import os\n" + INLINE.replace("httpx", "../evil"), 4, "requirement"),
        ("scripts/x.py", "\n# /// script\n# dependencies = [\n# ///\n", 3, "script-toml"),
        ("code/x.py", INLINE + "\n" + INLINE, 6, "script-twice"),
        ("code/x.py", INLINE.replace('">=3.11"', '"new"'), 2, "requires-python"),
    ],
)
def test_what_is_wrong_is_an_error_where_the_format_has_a_rule(
    tmp_path: Path, path: str, text: str, line: int, rule: str
) -> None:
    for directory, level in ((agent_skill(tmp_path), "warning"), (action(tmp_path), "error")):
        write(directory, {path: text})
        assert [(f.level, f.file, f.line, f.rule) for f in validate(directory)] == [(level, path, line, rule)]
        assert [f.level for f in validate(directory, "lenient")] == ["warning"]
        assert rule in RULES


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (INLINE.replace("# ///\n", ""), "script-unclosed"),
        (INLINE.replace(">=3.11", "<3.9"), "python-version"),
    ],
)
def test_what_is_only_told(tmp_path: Path, text: str, rule: str) -> None:
    directory = write(action(tmp_path), {"code/x.py": text})
    assert [(f.level, f.rule) for f in validate(directory)] == [("warning", rule)]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("x\n" * (MAX_REQUIREMENTS_BYTES // 2 + 1), "requirements-size"),
        ("\n".join(f"p{n}" for n in range(MAX_DEPENDENCIES + 1)), "dependencies-many"),
    ],
)
def test_bounds_hold_in_every_profile(tmp_path: Path, text: str, rule: str) -> None:
    directory = write(agent_skill(tmp_path), {"requirements.txt": text})
    skill, findings = loaded(directory)
    assert skill is None
    assert [finding.rule for finding in findings] == [rule]


def test_a_line_of_any_length_is_cut(tmp_path: Path) -> None:
    directory = write(agent_skill(tmp_path), {"requirements.txt": "x" * 100_000})
    [cut] = dependencies(directory)
    assert len(cut) < 1100


def test_a_range_that_is_not_understood_admits_no_python() -> None:
    assert not ScriptMetadata(1, requires_python="newest").admits_python("3.11.7")
