"""Splitting SKILL.md, and YAML without its surprises."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skillyard.stores.skills.validation.skill_md import NoFrontMatter, split
from skillyard.yaml_values import Document, YamlRefused


@pytest.mark.parametrize(
    ("text", "yaml", "body"),
    [
        ("---\na: 1\n---\nbody\n", "a: 1", "body\n"),
        ("\ufeff---\na: 1\n---\nbody", "a: 1", "body"),
        ("---\r\na: 1\r\n---\r\nbody\r\n", "a: 1\r", "body\r\n"),
        ("---\n---\n", "", ""),
        ("---  \na: b --- c\n--- \nbody", "a: b --- c", "body"),
        ("---\na: |\n  ---\n  x\n---\n", "a: |\n  ---\n  x", ""),
        ("---\na: 1\n---\nx\n---\ny", "a: 1", "x\n---\ny"),
        ("---\na: 1\n---", "a: 1", ""),
        ("---\na: '\u2028---\u2028'\n---\nb", "a: '\u2028---\u2028'", "b"),
    ],
)
def test_split(text: str, yaml: str, body: str) -> None:
    parts = split(text)
    assert (parts.yaml, parts.body) == (yaml, body)


@pytest.mark.parametrize(
    ("text", "line"),
    [("", 1), ("# Title\n", 1), ("\n---\na: 1\n---\n", 1), ("--- a\n---\n", 1), ("----\n---\n", 1), ("---\na: 1\n", 3)],
)
def test_no_front_matter(text: str, line: int) -> None:
    with pytest.raises(NoFrontMatter) as caught:
        split(text)
    assert caught.value.line == line


@given(st.lists(st.text(alphabet=st.characters(blacklist_characters="\n"), max_size=10), max_size=6), st.text())
def test_splitting_takes_nothing_away(lines: list[str], body: str) -> None:
    lines = [line for line in lines if line.rstrip(" \t\r") != "---"]
    parts = split("\n".join(["---", *lines, "---", body]))
    assert (parts.yaml, parts.body) == ("\n".join(lines), body)


@given(st.text(alphabet="-\n\r \ufeffa:", max_size=60))
@example("---\n---")
def test_splitting_any_text(text: str) -> None:
    try:
        parts = split(text)
    except NoFrontMatter:
        return
    assert len(parts.yaml) + len(parts.body) < len(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("tRue", "tRue"),
        ("", None),
        ("~", None),
        ("null", None),
        ("2026-01-02", "2026-01-02"),
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
        ("12:30:45", "12:30:45"),
        ("010", "010"),
        ("0x1f", "0x1f"),
        ("0b1", "0b1"),
        ("1_000", "1_000"),
        ("-12", -12),
        ("1.50", 1.5),
        ("1e3", 1000.0),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("1e999", "1e999"),
        ("1" * 40, "1" * 40),
        ("'1'", "1"),
        ('"true"', "true"),
        ("[a, 1, {b: yes}]", ["a", 1, {"b": "yes"}]),
        ("|\n  x\n  y\n", "x\ny\n"),
        (">-\n  x\n  y\n", "x y"),
    ],
)
def test_scalars_mean_what_they_look_like(text: str, value: object) -> None:
    assert Document(f"key: {text}").value == {"key": value}


def test_keys_are_strings_as_written() -> None:
    assert Document("1: a\nyes: b\nnull: c\n1.0: d\n").value == {"1": "a", "yes": "b", "null": "c", "1.0": "d"}


def test_source_and_lines_are_known() -> None:
    document = Document("name: x\nmetadata:\n  version: 1.10\n  list:\n  - 007\n")
    assert document.source["metadata", "version"] == "1.10"
    assert document.source["metadata", "list", 0] == "007"
    assert document.lines["metadata", "version"] == 3


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("a: 1\nb: 2\na: 3", "the key 'a' twice", 3),
        ("a: {b: 1, b: 2}", "the key 'b' twice", 1),
        ("a: &x 1\nb: *x", "anchors", 1),
        ("a: 1\nb: *x", "anchors", 2),
        ("a: &x [1]", "anchors", 1),
        ("<<: {a: 1}", "merge", 1),
        ("a: !!python/object/apply:os.system ['id']", "tags", 1),
        ("a: !!binary aGk=", "tags", 1),
        ("a: !mine 1", "tags", 1),
        ("? [a]\n: 1", "plain strings", 1),
        ("a: 1\n...\nb: 2", "not valid YAML", 3),
        ('a: "\\ud800"', "surrogates", 1),
        ('"\\udc00": 1', "surrogates", 1),
        ("a: 1\n--- \nb: 2", "one document", 2),
        ("%YAML 1.1\n---\na: 1", "directives", 1),
        ("a: 'open", "not valid YAML", 1),
        ("a: b: c", "not valid YAML", 1),
        ("a: 1\nb: \t1\n c: 2", "not valid YAML", 2),
        ("a: \x07", "not valid YAML", 1),
        ("a: " + "[" * 1000, "levels", 1),
        ("a: " + "[" * 40000, "levels", 1),
        ("{a: " * 100, "levels", 1),
        ("a: [" + "1," * 9000 + "]", "values", 1),
        ("a: " + "x" * 70000, "bytes", 1),
    ],
)
def test_what_is_refused(text: str, message: str, line: int) -> None:
    with pytest.raises(YamlRefused, match=message) as caught:
        Document(text)
    assert caught.value.line == line


def test_an_alias_bomb_costs_nothing() -> None:
    bomb = "a: &a [x,x,x,x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)},*{chr(97 + i)}]\n" for i in range(25)
    )
    with pytest.raises(YamlRefused):
        Document(bomb)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(min_size=1, max_size=12), plain, max_size=4))
def test_json_is_read_as_itself(value: dict[str, object]) -> None:
    text = json.dumps(value, ensure_ascii=False)
    try:
        read = Document(text).value
    except YamlRefused as error:
        complaint = str(error)
    else:
        complaint = "" if read == value else f"read as {read!r}"
    assert (
        complaint == "" or "is not valid YAML" in complaint
    )  # characters and long keys that JSON has and YAML has not


@given(st.text(alphabet="ab:-[]{}&*!|>'\"#%@`?,. \n\t~<0", max_size=40))
def test_any_text_is_a_value_or_refused(text: str) -> None:
    try:
        value, line = Document(text).value, 1
    except YamlRefused as error:
        value, line = None, error.line
    assert line >= 1
    assert json.dumps(value, allow_nan=False)
