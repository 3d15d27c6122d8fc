"""What a reviewer of a version is shown."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.diff import FileSide, Side, SkillDiff, diff_skills
from skillyard.domain.diff.files import MAX_DIFF, MAX_FILE_DIFF, MAX_TEXT
from skillyard.domain.secret import Delivery
from skillyard.domain.skill.skill import Needs, RuntimeSpec, SecretNeed, Skill, SkillFormat, SkillKind

PLAIN = Skill(
    name="acme.report",
    version="1.0.0",
    kind=SkillKind.ACTION,
    format=SkillFormat.PROTOCOL,
    description="Reports.",
    namespace="acme",
    root=Path("/nowhere"),
    digest="0" * 64,
    manifest={},
    frontmatter={},
    body="",
    files=(),
    runtime=RuntimeSpec("python", "code/main.py", "run"),
)


def side(files: Mapping[str, bytes] | None = None, *, executable: tuple[str, ...] = (), **changed: Any) -> Side:
    made = {
        path: FileSide(len(data), hashlib.sha256(data).hexdigest(), path in executable, lambda data=data: data)  # type: ignore[misc]
        for path, data in (files or {}).items()
    }
    return Side(replace(PLAIN, **changed), made)


def needs(old: Needs, new: Needs) -> list[tuple[str, str, str, str, str, bool]]:
    found = diff_skills(side(needs=old), side(needs=new))
    return [(c.need, c.name, c.change.value, c.before, c.after, c.widens) for c in found.needs]


def test_equal_versions_have_no_difference() -> None:
    found = diff_skills(side({"SKILL.md": b"x"}), side({"SKILL.md": b"x"}, version="2.0.0"))
    assert found == SkillDiff((), (), ())
    assert found.same
    assert not found.widens


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ((), ("a.com",), [("network", "a.com", "added", "", "a.com", True)]),
        (("a.com",), (), [("network", "a.com", "removed", "a.com", "", False)]),
        ((), ("!a.com",), [("network", "!a.com", "added", "", "!a.com", False)]),
        (("!a.com",), (), [("network", "!a.com", "removed", "!a.com", "", True)]),
        (("a.com", "b.com"), ("b.com", "a.com"), []),
    ],
)
def test_network(old: tuple[str, ...], new: tuple[str, ...], changes: list[object]) -> None:
    assert needs(Needs(network=old), Needs(network=new)) == changes


GATE = SecretNeed("KEY", delivery=Delivery.GATE, hosts=("a.com",))


@pytest.mark.parametrize(
    ("old", "new", "widens"),
    [
        (None, GATE, True),
        (GATE, None, False),
        (GATE, replace(GATE, hosts=("a.com", "b.com")), True),
        (replace(GATE, hosts=("a.com", "b.com")), GATE, False),
        (GATE, replace(GATE, delivery=Delivery.ENV), True),
        (replace(GATE, delivery=Delivery.ENV), GATE, False),
        (GATE, replace(GATE, optional=True), False),
        (replace(GATE, optional=True), GATE, True),
    ],
)
def test_secrets(old: SecretNeed | None, new: SecretNeed | None, widens: bool) -> None:
    found = needs(Needs(secrets=(old,) if old else ()), Needs(secrets=(new,) if new else ()))
    assert [(need, name, widened) for need, name, *_, widened in found] == [("secrets", "KEY", widens)]


def test_a_secret_is_told_in_words() -> None:
    found = needs(Needs(), Needs(secrets=(GATE,)))
    assert found[0][4] == "required, by gate, for a.com"


def test_packages_and_skills_by_name() -> None:
    old = Needs(dependencies=("NumPy>=1", "pillow"), requires=("acme.base >=1",))
    new = Needs(dependencies=("numpy >=2", "requests"), requires=("acme.base >=1", "acme.more"))
    assert needs(old, new) == [
        ("dependencies", "numpy", "changed", "NumPy>=1", "numpy >=2", True),
        ("dependencies", "requests", "added", "", "requests", True),
        ("requires", "acme.more", "added", "", "acme.more", True),
        ("dependencies", "pillow", "removed", "pillow", "", False),
    ]


def test_limits() -> None:
    old, new = Needs(limits={"memory_mb": 512, "cpus": 2, "pids": 5}), Needs(limits={"memory_mb": 1024, "cpus": 1.5})
    assert needs(old, new) == [
        ("limits", "memory_mb", "changed", "512", "1024", True),
        ("limits", "cpus", "changed", "2", "1.5", False),
        ("limits", "pids", "removed", "5", "", False),
    ]


def test_how_it_runs_and_shows_itself() -> None:
    new = side(
        runtime=RuntimeSpec("python", "code/other.py", "run"), description="Other.", inputs_schema={"type": "object"}
    )
    assert [(c.field, c.before, c.after) for c in diff_skills(side(), new).facts] == [
        ("entrypoint", "code/main.py:run", "code/other.py:run"),
        ("description", "Reports.", "Other."),
        ("inputs schema", "none", "one"),
    ]


def test_files() -> None:
    old = {"SKILL.md": b"one\ntwo\n", "gone": b"x", "same": b"x", "run": b"x", "pic": b"\x89PNG\0", "latin": b"caf\xe9"}
    new = {"SKILL.md": b"one\n2\r\n", "same": b"x", "run": b"x", "pic": b"\x89PNG\0\0", "latin": b"caf", "new": b"y"}
    found = diff_skills(side(old), side(new, executable=("run",))).files
    assert [(c.path, c.change.value, c.old_size, c.new_size, c.reason) for c in found] == [
        ("SKILL.md", "changed", 8, 7, ""),
        ("gone", "removed", 1, None, ""),
        ("latin", "changed", 4, 3, "binary"),
        ("new", "added", None, 1, ""),
        ("pic", "changed", 5, 6, "binary"),
        ("run", "changed", 1, 1, ""),
    ]
    by_path = {change.path: change for change in found}
    assert by_path["SKILL.md"].diff == "@@ -1,2 +1,2 @@\n one\n-two\n+2\r\n"
    assert by_path["new"].diff == "@@ -0,0 +1,1 @@\n+y\n\\ No newline at end of file\n"
    assert by_path["gone"].diff == ""
    assert (by_path["run"].diff, by_path["run"].old_executable, by_path["run"].new_executable) == ("", False, True)


def test_only_what_changed_is_read() -> None:
    def unread() -> bytes:
        raise AssertionError

    old = Side(PLAIN, {"a": FileSide(1, "1", False, unread), "b": FileSide(1, "2", False, unread)})
    new = Side(PLAIN, {"a": FileSide(1, "1", False, unread), "c": FileSide(MAX_TEXT + 1, "3", False, unread)})
    found = diff_skills(old, new).files
    assert [(c.path, c.reason) for c in found] == [("b", ""), ("c", "too large")]


def test_size_is_bounded() -> None:
    files = {f"{i:03}": b"line\n" * 40_000 for i in range(40)}
    files["long"] = b"x" * 200_000
    found = diff_skills(side(), side(files)).files
    assert len(found) == 41
    assert all(len(change.diff) <= MAX_FILE_DIFF for change in found)
    assert sum(len(change.diff) for change in found) <= MAX_DIFF
    assert {change.reason for change in found if not change.cut} == {"too many"}
    alone = diff_skills(side(), side({"long": b"x" * 200_000})).files[0]
    assert alone.cut
    assert len(alone.diff) < 3000
