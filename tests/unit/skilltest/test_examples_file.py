"""tests/examples.toml: what stands in it, and what is wrong with it, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillyard.domain.skill.example import Example, Expectation, ExpectedBlob
from skillyard.skilltest.runner import read_subject
from skillyard.stores.skills.validation.bundle import validate
from tests.unit.stores.skills.skilldirs import action_files, agent_skill, write

WHOLE = """\
[[example]]
name = "one"
args = { n = 1 }
blobs = { table = "tests/a.csv" }
secrets = { KEY = "v" }
limits = { pids = 9 }

[example.expect]
output = { a = 1 }
schema = { type = "object" }
log = "x"
blobs = ["text/csv", { contains = "y", json = { z = 1 }, bytes = "00ff" }]

[[example]]
name = "two"
script = "code/main.py"
argv = ["{table}"]
stdin = "in"
expect = { exit = 3, stdout = ["a", "b"], stderr = "c" }

[[example]]
name = "three"
code = "def main(args): ..."
expect = { error = "ValueError", message = "m" }
"""


def bundle(root: Path, examples: str) -> Path:
    return write(root / "acme.text.count", {**action_files(), "tests/a.csv": "a\n", "tests/examples.toml": examples})


def test_everything_is_read(tmp_path: Path) -> None:
    subject, findings = read_subject(bundle(tmp_path, WHOLE))
    assert findings == []
    assert subject is not None
    assert list(subject.examples) == [
        Example(
            "one",
            {"n": 1},
            {"table": "tests/a.csv"},
            {"KEY": "v"},
            {"pids": 9},
            expect=Expectation(
                output={"a": 1},
                schema={"type": "object"},
                log=("x",),
                blobs=(ExpectedBlob("text/csv"), ExpectedBlob(None, "y", {"z": 1}, "00ff")),
            ),
        ),
        Example(
            "two",
            script="code/main.py",
            argv=("{table}",),
            stdin="in",
            expect=Expectation(exit=3, stdout=("a", "b"), stderr=("c",)),
        ),
        Example("three", code="def main(args): ...", expect=Expectation(error="ValueError", message="m")),
    ]


@pytest.mark.parametrize(
    ("lines", "rule", "line"),
    [
        ("x = ", "toml", 2),
        ("", "required", 1),
        ('name = "a"\n[[example]]\nname = "a"', "example-duplicate", 4),
        ('name = "a"\nargs = 1', "type", 3),
        ('name = "a"\nexpct = {}', "unknown-key", 3),
        ('name = "a"\nblobs = {\n x = "tests/b.csv" }', "toml", 3),
        ('name = "a"\nblobs = { x = "tests/b.csv" }', "example-file", 3),
        ('name = "a"\nblobs = { x = "../b.csv" }', "path", 3),
        ('name = "a"\nargs.x = 1\nblobs.x = "tests/a.csv"', "example-way", 4),
        ('name = "a"\nscript = "no.py"', "example-file", 3),
        ('name = "a"\nscript = "code/main.py"\ncode = "x"', "example-way", 3),
        ('name = "a"\nargv = ["x"]', "example-way", 1),
        ('name = "a"\n[example.expect]\nexit = 0', "example-way", 4),
        ('name = "a"\nscript = "code/main.py"\n[example.expect]\nexit = "0"', "type", 5),
        ('name = "a"\n[example.expect]\nerror = "X"\noutput = {}', "example-way", 5),
        ('name = "a"\n[example.expect]\nblobs = "x"', "type", 4),
        ('name = "a"\n[example.expect]\nblobs = [\n"x",\n1]', "type", 6),
        ('name = "a"\n[example.expect]\nblobs = [\n{ bytes = "xyz" }]', "example-bytes", 5),
        ('name = "a"\n[example.expect]\nblobs = [{ kid = "x" }]', "unknown-key", 4),
        ('name = "a"\nlimits = { ram = 1 }', "limit", 3),
        ('name = "a"\nsecrets = { "a b" = "x" }', "secret-name", 3),
        ('name = "a"\n[example.expect.schema]\ntype = "objekt"', "schema", 4),
        ("\n".join(f'name = "{i}"\n[[example]]' for i in range(100)) + '\nname = "x"', "example-many", 1),
    ],
)
def test_what_is_wrong(tmp_path: Path, lines: str, rule: str, line: int) -> None:
    directory = bundle(tmp_path, f"[[example]]\n{lines}\n")
    strict = [(f.level, f.file, f.line, f.rule) for f in validate(directory)]
    level = "warning" if rule == "unknown-key" else "error"
    assert (level, "tests/examples.toml", line, rule) in strict
    assert all(f.mend for f in validate(directory))
    assert all(f.level == "warning" for f in validate(directory, "lenient"))
    assert (read_subject(directory)[0] is None) == (level == "error")


def test_it_is_a_list_of_tables(tmp_path: Path) -> None:
    assert [(f.rule, f.line) for f in validate(bundle(tmp_path, "example = 1\n"))] == [("type", 1)]
    assert [(f.rule, f.line) for f in validate(bundle(tmp_path, "\nexamples = 1\n"))] == [("unknown-key", 2)]


def test_the_specification_of_agent_skills_knows_no_such_file(tmp_path: Path) -> None:
    """It is no reason to call one of them invalid; testing it is refused."""
    directory = write(agent_skill(tmp_path), {"tests/examples.toml": "[[example]]\nname = 'a'\n"})
    assert [(f.level, f.rule) for f in validate(directory)] == [("warning", "example-way")]
    subject, findings = read_subject(directory)
    assert (subject, [f.level for f in findings]) == (None, ["error"])
