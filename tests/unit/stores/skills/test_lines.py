"""Findings name the right line, however deep in TOML or YAML the value stands."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.stores.skills.validation.bundle import validate
from skillyard.stores.skills.validation.toml import toml_lines
from tests.unit.stores.skills.skilldirs import MAIN, write

HEAD = 'name = "acme.text.count"\nversion = "1.0.0"\ndescription = "A skill"\nkind = "action"\n'
RUNTIME = '[runtime]\nlanguage = "python"\nentrypoint = "code/main.py"\nexport = "main"\n'
SKILL_MD = "---\nname: count\ndescription: A skill\n---\nUse it.\n"


def found(root: Path, manifest: str) -> list[tuple[str, int]]:
    files = {"skill.toml": manifest, "SKILL.md": SKILL_MD, "code/main.py": MAIN}
    return [(finding.rule, finding.line) for finding in validate(write(root / "acme.text.count", files))]


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (f'{HEAD}{RUNTIME}[permissions]\nsecrets = [\n  "FINE",\n  "1BAD",\n]\n', [("secret-name", 12)]),
        (
            f'{HEAD}{RUNTIME}[permissions]\nsecrets = [\n  {{ name = "A" }},\n  {{ name = "B", delivery = "x" }},\n]\n',
            [("secret-delivery", 12)],
        ),
        (
            f'{HEAD}{RUNTIME}[permissions]\nnetwork = [\n"a.com",\n"]", # [x]\n"b.com:0",\n]\n',
            [("network-host", 12), ("network-port", 13)],
        ),
        (f'{HEAD}tags = [\n  "a",\n  ["b"],\n]\nnonsense = 1\n{RUNTIME}', [("unknown-key", 9), ("type", 7)]),
        (f"{HEAD}{RUNTIME}[dependencies]\npython = [\n  'numpy',\n  'git+https://x',\n]\n", [("dependency", 12)]),
        (f'{HEAD}x-text = """\n[limits]\npids = 1\n"""\n{RUNTIME}[limits]\npids = -1\n', [("limit", 14)]),
        (f'{HEAD}{RUNTIME}[inputs]\ntype = "object"\n[inputs.properties.a]\npattern = "("\n', [("schema-pattern", 12)]),
        (f'{HEAD}{RUNTIME}[inputs.properties]\na = {{ type = "text" }}\n', [("schema", 10)]),
    ],
)
def test_toml(tmp_path: Path, manifest: str, expected: list[tuple[str, int]]) -> None:
    assert found(tmp_path, manifest) == expected


def test_a_schema_file_is_told_by_its_lines(tmp_path: Path) -> None:
    schema = '{\n  "type": "object",\n  "properties": {\n    "a": {\n      "type": "text"\n    }\n  }\n}\n'
    files = {"skill.toml": f'{HEAD}inputs_schema = "a.json"\n{RUNTIME}', "SKILL.md": SKILL_MD, "code/main.py": MAIN}
    directory = write(tmp_path / "acme.text.count", {**files, "a.json": schema})
    assert [(f.file, f.line, f.rule) for f in validate(directory)] == [("a.json", 5, "schema")]
    write(directory, {"a.json": '{"type": "object",\n}\n'})
    assert [(f.file, f.line, f.rule) for f in validate(directory)] == [("a.json", 2, "schema-json")]


def test_yaml(tmp_path: Path) -> None:
    text = "---\nname: a\ndescription: >-\n  one\n  two\nmetadata:\n  x: 1\n  y:\n    - z\ncompatibility: ''\n---\n"
    findings = validate(write(tmp_path / "a", {"SKILL.md": text}))
    assert [(f.rule, f.line) for f in findings] == [("compatibility-length", 10), ("type", 8)]


def test_every_key_of_toml_has_its_line() -> None:
    text = (
        '# a = 1\n"a b".c = 1\n[[many]]\nx = 1\n[many.deep]\ny = """\nz = 1"""\n[[many]]\nx = [ # [no]\n'
        "  [1, 2],\n  { k = '}' , l = [\n 3] },\n]\nd = 1979-05-27T07:32:00Z\n"
    )
    tomllib.loads(text)
    assert toml_lines(text) == {
        ("a b",): 2,
        ("a b", "c"): 2,
        ("many",): 3,
        ("many", 0): 3,
        ("many", 0, "x"): 4,
        ("many", 0, "deep"): 5,
        ("many", 0, "deep", "y"): 6,
        ("many", 1): 8,
        ("many", 1, "x"): 9,
        ("many", 1, "x", 0): 10,
        ("many", 1, "x", 0, 0): 10,
        ("many", 1, "x", 0, 1): 10,
        ("many", 1, "x", 1): 11,
        ("many", 1, "x", 1, "k"): 11,
        ("many", 1, "x", 1, "l"): 11,
        ("many", 1, "x", 1, "l", 0): 12,
        ("many", 1, "d"): 14,
    }


WORDS = st.sampled_from(["", "#x", "[y]", "'", '"', "\\", "a = 1", '"""', "]", "é"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.integers(0, 9) | WORDS | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["k", "a.b", "'"]), inner, max_size=3),
    max_leaves=8,
)


def written(value: Any, breaks: bool) -> str:
    """A value as TOML; arrays over several lines when ``breaks``."""
    if isinstance(value, list):
        space = "\n  # ]\n" if breaks else " "
        return "[" + "".join(f"{space}{written(item, breaks)}," for item in value) + space + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(key)} = {written(item, breaks)}" for key, item in value.items()) + "}"
    return str(value).lower() if isinstance(value, (bool, int)) else quoted(value)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def paths_of(value: Any, path: tuple[Any, ...]) -> set[tuple[Any, ...]]:
    items: list[tuple[Any, Any]] = list(enumerate(value)) if isinstance(value, list) else []
    items = list(value.items()) if isinstance(value, dict) else items
    return {path}.union(*(paths_of(item, (*path, key)) for key, item in items)) - {()}


@given(st.dictionaries(st.sampled_from(["one", "two.x", "'q'"]), VALUES, max_size=3), st.booleans(), st.booleans())
def test_any_document_is_read_whole(values: dict[str, Any], breaks: bool, table: bool) -> None:
    """Every value has a line, and the keys' lines are where they were written."""
    head = "[t]\n" if table else ""
    text = head + "".join(f"{quoted(key)} = {written(value, breaks)}\n" for key, value in values.items())
    data = tomllib.loads(text)
    lines = toml_lines(text)
    assert set(lines) == paths_of(data, ())
    at = 1 + len(head.splitlines())
    for key, value in values.items():
        assert lines[("t", key) if table else (key,)] == at
        at += 1 + written(value, breaks).count("\n")


@given(st.text(alphabet="[]{}\"'=,.#\n\\a1 ", max_size=60))
def test_no_text_is_too_odd(text: str) -> None:
    assert all(1 <= line <= text.count("\n") + 1 for line in toml_lines(text).values())


def test_what_breaks_no_line_in_editors_breaks_none_here(tmp_path: Path) -> None:
    text = "---\nname: a\ndescription: one\u2028two \x85 three\u2029\ncompatibility: ''\n---\n"
    findings = validate(write(tmp_path / "a", {"SKILL.md": text}))
    assert [(f.rule, f.line) for f in findings] == [("compatibility-length", 4)]
