"""Agent Skills: what lenient serves (agent-skills-format); strict is beside the reference in test_reference.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillyard.domain.skill.skill import Finding, Skill, SkillFormat, SkillKind
from skillyard.stores.skills.tree import Caps, read_tree
from skillyard.stores.skills.validation.bundle import Bundle, Place, check_bundle, validate
from tests.unit.stores.skills.skilldirs import write

FINE = "name: pdf-tools\ndescription: Reads PDFs\n"


def front(lines: str, body: str = "Do this.\n") -> str:
    return f"---\n{lines}---\n{body}"


def test_lower_case_file_name(tmp_path: Path) -> None:
    directory = write(tmp_path / "pdf-tools", {"skill.md": front(FINE)})
    assert [(finding.rule, finding.mend) for finding in validate(directory)] == [
        ("required", "rename 'skill.md' to SKILL.md")
    ]


def load(directory: Path, *, lenient: bool = True) -> tuple[Skill | None, list[Finding]]:
    tree, _ = read_tree(directory, Caps())
    assert tree is not None
    return check_bundle(Bundle(tree, Place.of(directory), directory, lenient))


def lenient(root: Path, text: str, directory: str = "pdf-tools") -> tuple[Skill | None, list[str]]:
    """The skill and the rules of the findings."""
    skill, findings = load(write(root / directory, {"SKILL.md": text}))
    return skill, [finding.rule for finding in findings]


def test_an_agent_skill_is_an_instruction_skill(tmp_path: Path) -> None:
    more = "license: MIT\nmetadata:\n  version: 1.2.3\n  author: me\n"
    directory = write(tmp_path / "pdf-tools", {"SKILL.md": front(FINE + more), "scripts/run.py": "print()\n"})
    skill, findings = load(directory)
    assert skill is not None
    assert findings == []
    assert (skill.name, skill.version, skill.namespace) == ("pdf-tools", "1.2.3", "")
    assert (skill.kind, skill.format, skill.runtime) == (SkillKind.INSTRUCTION, SkillFormat.AGENT_SKILLS, None)
    assert skill.frontmatter["metadata"] == {"version": "1.2.3", "author": "me"}
    assert skill.manifest == {
        "name": "pdf-tools",
        "version": "1.2.3",
        "description": "Reads PDFs",
        "kind": "instruction",
    }
    assert [file.path for file in skill.files] == ["SKILL.md", "scripts/run.py"]
    assert (skill.body, skill.import_name) == ("Do this.\n", "pdf_tools")


@pytest.mark.parametrize(
    ("more", "version"),
    [
        ("", None),
        ("metadata:\n  version: 1.10\n", "1.10.0"),
        ("metadata:\n  version: '2'\n", "2.0.0"),
        ("metadata:\n  version: 1.0.0-rc.1\n", "1.0.0-rc.1"),
        ("metadata:\n  version: latest\n", None),
        ("metadata:\n  version:\n", None),
        ("version: 1.2.3\n", None),
    ],
)
def test_versions(tmp_path: Path, more: str, version: str | None) -> None:
    skill, _ = lenient(tmp_path, front(FINE + more))
    assert skill is not None
    assert skill.version == (version or f"0.0.0+{skill.digest[:12]}")


def test_a_version_directory_gives_the_version(tmp_path: Path) -> None:
    skill, findings = load(write(tmp_path / "pdf-tools" / "3.1.0", {"SKILL.md": front(FINE)}), lenient=False)
    assert skill is not None
    assert (skill.name, skill.version, findings) == ("pdf-tools", "3.1.0", [])


@pytest.mark.parametrize(
    ("text", "directory", "name", "found"),
    [
        (front("description: x\n"), "pdf-tools", "pdf-tools", ["required"]),
        (front("name: My Tools\ndescription: x\n"), "my-tools", "my-tools", ["name-alphabet", "directory-name"]),
        (front("name: My_Tools\ndescription: x\n"), "My_Tools", "My_Tools", ["name-alphabet"]),
        (front("name: é\ndescription: x\n"), "é", "é", ["name-alphabet"]),
        (front(FINE), "pdf", "pdf-tools", ["directory-name"]),
        (front(FINE + "tags: [a]\n"), "pdf-tools", "pdf-tools", ["unknown-key"]),
        (front(FINE + "hooks: {}\n"), "pdf-tools", "pdf-tools", ["hooks"]),
        (front(f"name: pdf-tools\ndescription: {'a' * 2000}\n"), "pdf-tools", "pdf-tools", ["description-length"]),
        (front("name: pdf-tools\ndescription: use when: always, 'yes'\n"), "pdf-tools", "pdf-tools", ["yaml"]),
        (front(FINE + "compatibility: ''\nmetadata: x\nlicense: [a]\n"), "pdf-tools", "pdf-tools", None),
        (front(FINE, "see \u200bhere \U000e0041\n"), "pdf-tools", "pdf-tools", ["invisible"]),
        (front(FINE, "x\n" * 600), "pdf-tools", "pdf-tools", ["body-length"]),
    ],
)
def test_lenient_loads_what_the_wild_has(
    tmp_path: Path, text: str, directory: str, name: str, found: list[str] | None
) -> None:
    skill, rules = lenient(tmp_path, text, directory)
    assert skill is not None
    assert skill.name == name
    assert all(finding.level == "warning" for finding in skill.findings)
    assert found is None or rules == found


def test_a_value_with_a_colon_is_read_whole(tmp_path: Path) -> None:
    skill, _ = lenient(tmp_path, front("name: pdf-tools\ndescription: use when: always, \"yes\" \\ 'no'\n"))
    assert skill is not None
    assert skill.description == "use when: always, \"yes\" \\ 'no'"


@pytest.mark.parametrize(
    "text",
    [
        *("", "# Title\n", "---\n" + FINE, front("name: pdf-tools\n"), front("- a\n")),
        *(front("name: pdf-tools\ndescription:\n"), front(FINE + "name: twice\n"), front(FINE + "a: &a b\n")),
    ],
)
def test_lenient_refuses_what_cannot_be_used(tmp_path: Path, text: str) -> None:
    skill, rules = lenient(tmp_path, text)
    assert skill is None
    assert rules


def test_a_name_that_cannot_be_a_path_is_refused(tmp_path: Path) -> None:
    skill, rules = lenient(tmp_path, front("name: a/b\ndescription: x\n"), "my tools")
    assert (skill, rules[-1]) == (None, "name-unusable")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    raw = front(FINE).encode() + b"\xff\n"
    directory = write(tmp_path / "pdf-tools", {"SKILL.md": raw})
    assert [(f.level, f.line, f.rule) for f in validate(directory)] == [("error", 5 + 1, "encoding")]
    skill, _ = load(directory)
    assert skill is not None
    assert skill.body == "Do this.\n\ufffd\n"


def test_findings_name_file_line_and_rule(tmp_path: Path) -> None:
    directory = write(tmp_path / "pdf", {"SKILL.md": front("description: x\nmetadata:\n  a: [1]\nname: Pdf\n")})
    assert [str(finding).splitlines()[0] for finding in validate(directory)] == [
        "SKILL.md:5: error: name: must be lowercase letters a-z, digits and single hyphens, with none at the ends"
        " (got 'Pdf') [name-alphabet]",
        "SKILL.md:5: error: name: must equal the name of the skill's directory (got 'Pdf') [directory-name]",
        "SKILL.md:4: error: metadata.a: must be a string (got array of 1) [type]",
    ]
