"""The table of rules is true: it names every rule of the code, each can be broken, and its levels are those told."""

from __future__ import annotations

import ast
import os
import re
import socket
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

import skillyard
from skillyard.domain.archive.names import ArchiveRefused
from skillyard.domain.rules import RULES, SECTIONS
from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.catalogue import Catalogue
from skillyard.stores.skills.sources.git_index import read_index
from skillyard.stores.skills.validation.bundle import validate
from tests.unit.stores.skills.rule_corpus import CASES, Case
from tests.unit.stores.skills.skilldirs import action, write

PACKAGE = Path(skillyard.__file__).parent
TESTS = Path(__file__).parents[3]
SOURCES = [
    *(path for part in ("domain", "stores/skills") for path in (PACKAGE / part).rglob("*.py")),
    PACKAGE / "tar_receiver.py",
]
REPORTING = frozenset(
    {"error", "warn", "breach", "report", "note", "danger", "add", "ArchiveRefused", "Finding", "Complaint", "_note"}
)
LEVELS = frozenset({"error", "danger", "warning", "note"})
_ID = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")

ON_DISK: dict[str, Callable[[Path], object]] = {
    "special-file": lambda skill: os.mkfifo(skill / "fifo"),
    "link-outside": lambda skill: (skill / "link").symlink_to("/etc/passwd"),
    "link-excluded": lambda skill: (skill / "link").symlink_to(write(skill / ".git", {"x": ""})),
    "link-loop": lambda skill: (skill / "code" / "link").symlink_to("../code"),
    "link-broken": lambda skill: (skill / "link").symlink_to("nothing"),
}
"""What no list of files can say."""
ELSEWHERE = {"unreadable"}
"""Root reads everything: tried in another file."""


def levels(directory: Path, rule: str) -> tuple[str, str]:
    """The gravest level of a rule's findings in each profile. Every strict finding says how to mend it."""
    strict = validate(directory, "strict")
    assert all(finding.mend for finding in strict)
    return gravest(strict, rule), gravest(validate(directory, "lenient"), rule)


def gravest(findings: list[Finding], rule: str) -> str:
    told = {finding.level for finding in findings if finding.rule == rule}
    return next((level for level in ("error", "warning", "note") if level in told), "")


@pytest.mark.parametrize("case", CASES, ids=[f"{case.rule}-{index}" for index, case in enumerate(CASES)])
def test_each_rule_is_broken_by_a_bundle(tmp_path: Path, case: Case) -> None:
    directory = write(tmp_path / case.directory, case.files)
    assert levels(directory, case.rule) == (case.strict, case.lenient), validate(directory)


@pytest.mark.parametrize("rule", ON_DISK)
def test_each_rule_of_a_directory_is_broken(tmp_path: Path, rule: str) -> None:
    directory = action(tmp_path)
    ON_DISK[rule](directory)
    assert levels(directory, rule) == ("error", "error")


def test_a_socket_and_no_directory(tmp_path: Path) -> None:
    directory = action(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "s"))
        assert levels(directory, "special-file") == ("error", "error")
    assert levels(tmp_path / "absent", "no-directory") == ("error", "error")


@pytest.mark.anyio
async def test_a_catalogue_tells_no_more_than_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillyard.stores.skills.catalogue.catalogue.MAX_PROBLEMS", 1)
    for name in ("a.one", "a.two"):
        write(tmp_path / "skills" / name, {"skill.toml": "x = "})
    skills = Catalogue([tmp_path / "skills"], tmp_path / "snapshots", guide=None)
    told = [finding.rule for finding in await skills.problems()]
    await skills.close()
    assert (len(told), told[-1]) == (2, "more-problems")


def test_an_index_that_is_none(tmp_path: Path) -> None:
    write(tmp_path, {".git/index": b"DIRC"})
    with pytest.raises(ArchiveRefused) as refused:
        list(read_index(tmp_path))
    assert refused.value.rule == "git-index"


def test_levels_in_the_table_are_those_that_are_told() -> None:
    strict: dict[str, set[str]] = defaultdict(set)
    lenient: dict[str, set[str]] = defaultdict(set)
    for case in CASES:
        strict[case.rule].add(case.strict)
        lenient[case.rule].add(case.lenient)
    written = {rule: (words(RULES[rule].strict), words(RULES[rule].lenient)) for rule in strict}
    assert written == {rule: (strict[rule] - {""}, lenient[rule] - {""}) for rule in strict}


def words(text: str) -> set[str]:
    return set(re.split(r", | or ", text)) - {""}


def test_every_rule_of_the_table_is_broken_somewhere() -> None:
    tried = {case.rule for case in CASES} | set(ON_DISK) | {"no-directory"} | ELSEWHERE
    ours = ("Files", "skill.toml", "SKILL.md", "Examples")
    assert {rule.id for section in ours for rule in SECTIONS[section]} - tried == set()
    text = "".join(path.read_text() for path in sorted(TESTS.rglob("*.py")))
    assert [rule for rule in RULES if f'"{rule}"' not in text] == []


def test_every_rule_of_the_code_is_in_the_table() -> None:
    found = {rule: path.name for path in SOURCES for rule in ids_of(path)}
    assert {rule: file for rule, file in found.items() if rule not in RULES} == {}
    assert len(found) > 100


def ids_of(path: Path) -> set[str]:
    """Words that stand where a rule does in the calls that report something."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    told = [call.args for call in calls if name_of(call.func) in REPORTING]
    texts = {arg.value for args in told for arg in args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    return {text for text in texts if _ID.fullmatch(text) and text not in LEVELS}


def name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_each_rule_stands_once_with_a_meaning_and_a_mend() -> None:
    every = [rule for section in SECTIONS.values() for rule in section]
    assert [name for name, count in Counter(rule.id for rule in every).items() if count > 1] == []
    for rule in every:
        assert _ID.fullmatch(rule.id), rule
        assert rule.meaning.endswith("."), rule
        assert rule.mend, rule
        assert not rule.mend.endswith("."), rule
        assert words(rule.strict) | words(rule.lenient) | words(rule.review) <= LEVELS, rule
        assert rule.strict or rule.lenient or rule.review, rule
