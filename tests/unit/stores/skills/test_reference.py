"""``skill validate`` and the reference validator on a corpus: they agree, or a listed difference says why not."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.stores.skills.reference import (
    DIFFERENCES,
    FINE,
    Difference,
    Sample,
    explained,
    front,
    is_valid_for_reference,
    is_valid_for_us,
)

PAGE = Path(__file__).parents[4] / "docs" / "skills-ref.md"
HEADER = "| difference | `skill validate` | `skills-ref` | what | why |"

VALID = {
    "minimal": Sample(front(FINE)),
    "all keys": Sample(
        front(FINE + "license: MIT\ncompatibility: git\nallowed-tools: Read Bash(git:*)\nmetadata:\n  version: 1.0\n")
    ),
    "crlf": Sample(front(FINE).replace("\n", "\r\n")),
    "folded": Sample(front("name: pdf-tools\ndescription: >-\n  Reads\n  PDFs\n")),
    "literal": Sample(front("name: pdf-tools\ndescription: |\n  Reads\n\n  PDFs\n")),
    "over lines": Sample(front("name: pdf-tools\ndescription: Reads\n  PDFs\n")),
    "comments": Sample(front("# a comment\nname: pdf-tools # another\ndescription: x\n")),
    "quoted": Sample(front('"name": \'pdf-tools\'\n\'description\': "a: b \\u00e9 \\""\n')),
    "name is a number": Sample(front("name: 123\ndescription: x\n"), "123"),
    "name is a date": Sample(front("name: 2026-01-01\ndescription: x\n"), "2026-01-01"),
    "name is a word of YAML": Sample(front("name: yes\ndescription: x\n"), "yes"),
    "name is null": Sample(front("name: null\ndescription: ~\n"), "null"),
    "description is a number": Sample(front("name: pdf-tools\ndescription: 5\n")),
    "empty license": Sample(front(FINE + "license:\n")),
    "tools as a list": Sample(front(FINE + "allowed-tools:\n- Read\n- Grep\n")),
    "longest name": Sample(front(f"name: {'a' * 64}\ndescription: x\n"), "a" * 64),
    "one letter": Sample(front("name: a\ndescription: x\n"), "a"),
    "longest description": Sample(front(f"name: pdf-tools\ndescription: {'é' * 1024}\n")),
    "longest compatibility": Sample(front(FINE + f"compatibility: {'a' * 500}\n")),
    "no body": Sample("---\n" + FINE + "---"),
    "dashes in the body": Sample(front(FINE, "a\n---\nb --- c\n----\n")),
    "blanks behind the fence": Sample("---  \n" + FINE + "--- \t\nDo this.\n"),
    "other files": Sample(front(FINE), more={"scripts/a.py": "x", "README.md": "y", "skill.md": "z"}),
    "numbers in metadata": Sample(front(FINE + "metadata:\n  a: 1\n  b: 1.10\n  c: true\n  d:\n")),
}
INVALID = {
    "no front matter": Sample("# Title\n"),
    "never closed": Sample("---\n" + FINE),
    "empty file": Sample(""),
    "text before": Sample("\n" + front(FINE)),
    "nothing between": Sample("---\n---\n"),
    "a list": Sample(front("- a\n- b\n")),
    "a scalar": Sample(front("hello\n")),
    "no name": Sample(front("description: x\n")),
    "no description": Sample(front("name: pdf-tools\n")),
    "empty name": Sample(front("name:\ndescription: x\n")),
    "empty description": Sample(front("name: pdf-tools\ndescription:\n")),
    "blank description": Sample(front("name: pdf-tools\ndescription: '  '\n")),
    "description is a map": Sample(front("name: pdf-tools\ndescription:\n  a: b\n")),
    "name is a list": Sample(front("name:\n- pdf-tools\ndescription: x\n")),
    "name too long": Sample(front(f"name: {'a' * 65}\ndescription: x\n"), "a" * 65),
    "description too long": Sample(front(f"name: pdf-tools\ndescription: {'a' * 1025}\n")),
    "compatibility too long": Sample(front(FINE + f"compatibility: {'a' * 501}\n")),
    "compatibility is a list": Sample(front(FINE + "compatibility:\n- git\n")),
    "upper case": Sample(front("name: PDF\ndescription: x\n"), "PDF"),
    "underscore": Sample(front("name: a_b\ndescription: x\n"), "a_b"),
    "dot": Sample(front("name: a.b\ndescription: x\n"), "a.b"),
    "blank": Sample(front("name: a b\ndescription: x\n"), "a b"),
    "leading hyphen": Sample(front("name: -a\ndescription: x\n"), "-a"),
    "trailing hyphen": Sample(front("name: a-\ndescription: x\n"), "a-"),
    "double hyphen": Sample(front("name: a--b\ndescription: x\n"), "a--b"),
    "other directory": Sample(front(FINE), "pdf"),
    "duplicate key": Sample(front(FINE + "name: other\n")),
    "duplicate in metadata": Sample(front(FINE + "metadata:\n  a: b\n  a: c\n")),
    "anchor": Sample(front("name: pdf-tools\ndescription: &a x\nlicense: *a\n")),
    "tag": Sample(front("name: pdf-tools\ndescription: !!str x\n")),
    "merge key": Sample(front(FINE + "metadata:\n  <<: x\n  a: b\n").replace("<<: x", "<<: *a")),
    "colon in a value": Sample(front("name: pdf-tools\ndescription: use when: always\n")),
    "broken quotes": Sample(front("name: 'pdf-tools\ndescription: x\n")),
    "tabs": Sample(front("name: pdf-tools\ndescription: x\nmetadata:\n\ta: b\n")),
    "control character": Sample(front("name: pdf-tools\ndescription: a\x07b\n")),
    "no text": Sample(b"---\nname: pdf-tools\ndescription: \xff\n---\n"),
    "two documents": Sample(front("name: pdf-tools\n...\ndescription: x\n")),
    "no file": Sample("x", file="README.md"),
}


@pytest.mark.parametrize("name", [*VALID, *INVALID])
def test_what_both_say_alike(tmp_path: Path, name: str) -> None:
    sample = VALID.get(name) or INVALID[name]
    directory = sample.written(tmp_path)
    assert (is_valid_for_us(directory), is_valid_for_reference(directory)) == (name in VALID, name in VALID)


@pytest.mark.parametrize("known", DIFFERENCES, ids=lambda known: known.id)
def test_each_listed_difference_is_one(tmp_path: Path, known: Difference) -> None:
    for number, sample in enumerate(known.samples):
        directory = sample.written(tmp_path / str(number))
        assert (is_valid_for_us(directory), is_valid_for_reference(directory)) == (known.ours, not known.ours), sample
        assert known.id in explained(sample, known.ours)


def test_the_page_lists_the_same_differences() -> None:
    table = PAGE.read_text().split(HEADER)[1].split("\n\n")[0].strip().splitlines()[1:]
    verdicts = {True: "valid", False: "invalid"}
    expected = [
        f"| {known.id} | {verdicts[known.ours]} | {verdicts[not known.ours]} | {known.what} | {known.why} |"
        for known in DIFFERENCES
    ]
    assert table == expected


def test_the_page_names_the_version_that_was_asked() -> None:
    lock = (PAGE.parents[1] / "requirements" / "dev.txt").read_text()
    version = re.search(r"^skills-ref==(\S+)", lock, re.MULTILINE)
    assert version is not None
    assert f"`skills-ref` {version[1]}" in PAGE.read_text()


NAMES = st.sampled_from(
    ["pdf-tools", "a", "PDF", "a_b", "é", "a--b", "-a", "1", "yes", "true", "null", "a.b", "ﬁ", "x" * 65]
)
TEXTS = st.sampled_from(
    [
        "x",
        "Reads PDFs",
        "",
        "  ",
        "~",
        "5",
        "1.10",
        "a: b",
        "a --- b",
        "a # b",
        "é\u2028b",
        "x" * 1025,
        "@a",
        "%a",
        "- a",
        "a\\/b",
        "*x",
        "&x y",
        "!x",
        "|",
        ">",
        "[a]",
        "{a: b}",
        "a,b",
        "? a",
        "'a'",
        '"a"',
        "a\tb",
    ]
)
STYLES = st.sampled_from(["{}", "{}", "{}", "'{}'", '"{}"', ">-\n  {}", "|\n  {}", "# {}", "\n  {}"])
KEYS = st.sampled_from(
    [
        "name",
        "description",
        "license",
        "compatibility",
        "metadata",
        "allowed-tools",
        "tags",
        "Name",
        "'name'",
        "? a",
        "",
    ]
)
NESTED = st.sampled_from(
    [
        "\n  a: b",
        "\n  a: 1\n  b: c",
        "\n- a\n- b",
        "\n  - a",
        "\n  a:\n    b: c",
        "\n- a: b",
        "\n  a: b\n  a: c",
        " {}",
        " []",
        "\n   a: b\n  c: d",
        "\n\ta: b",
    ]
)
NOISE = st.sampled_from(
    ["", "", "", "# a comment\n", "\n", "  \n", "---\n", "...\n", "--- x\n", "%YAML 1.2\n", "\t\n", "a\n", "- a\n"]
)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    """Front matters that are nearly right."""
    name = draw(NAMES)
    pairs = [("name", name if draw(st.integers(0, 5)) else draw(TEXTS)), ("description", draw(TEXTS))]
    pairs += draw(st.lists(st.tuples(KEYS, TEXTS), max_size=3))
    lines = [
        f"{key}:{draw(NESTED)}\n"
        if not draw(st.integers(0, 4)) and key != "name"
        else f"{key}: {draw(STYLES).format(text)}\n"
        for key, text in draw(st.permutations(pairs))
    ]
    lines.insert(draw(st.integers(0, len(lines))), draw(NOISE))
    opening = draw(st.sampled_from(["---\n", "---\n", "---\n", "--- \n", "---x\n", "\ufeff---\n", "\n---\n", "----\n"]))
    closing = draw(st.sampled_from(["---\n", "---\n", "---\n", "---", " ---\n", "----\n", "...\n", ""]))
    body = draw(st.sampled_from(["Do this.\n", "", "a --- b\n", "---\n"]))
    text = opening + "".join(lines) + closing + body
    if not draw(st.integers(0, 6)):
        text = text.replace("\n", draw(st.sampled_from(["\r\n", "\r"])))
    return Sample(text.encode(), name if draw(st.integers(0, 9)) else "elsewhere")


def compare(root: Path, sample: Sample) -> None:
    try:
        directory = sample.written(root)
        ours, reference = is_valid_for_us(directory), is_valid_for_reference(directory)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    assert ours == reference or explained(sample, ours), f"we say {ours}"


@given(samples())
def test_any_front_matter_is_judged_alike_or_the_difference_is_listed(tmp_path: Path, sample: Sample) -> None:
    compare(tmp_path / "one", sample)
