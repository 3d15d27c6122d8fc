"""``tests/examples.toml`` of a bundle, read from its files."""

from __future__ import annotations

from collections.abc import Mapping

from skillyard.domain.skill.example import PATH, Example, check_examples
from skillyard.domain.skill.manifest_report import Path
from skillyard.stores.skills import schema
from skillyard.stores.skills.findings import Findings
from skillyard.stores.skills.toml_file import TomlRefused, line_at, read_toml
from skillyard.stores.skills.tree import Tree


def read_examples(tree: Tree, findings: Findings, *, executable: bool, lenient: bool) -> list[Example]:
    """Empty when there are none, or when some of them are wrong."""
    file = tree.files.get(PATH)
    if file is None:
        return []
    try:
        document = read_toml(file.data)
    except TomlRefused as error:
        findings.breach(lenient, PATH, error.line, "toml", str(error))
        return []
    examples, problems = check_examples(document.data, set(tree.files), executable=executable, lenient=lenient)
    findings.take(problems, PATH, document.lines)
    fine = [_accepts(findings, index, example, document.lines, lenient) for index, example in enumerate(examples)]
    return examples if all(fine) else []


def _accepts(findings: Findings, index: int, example: Example, lines: Mapping[Path, int], lenient: bool) -> bool:
    """Whether the schema that an example expects can be applied."""
    where = ("example", index, "expect", "schema")
    fine = True
    for found in schema.complaints(example.expect.schema or {}):
        fine = fine and found.is_fine(lenient=lenient)
        line = line_at(lines, (*where, *found.path))
        findings.breach(lenient or found.level == "warning", PATH, line, found.rule, f"schema: {found.message}")
    return fine
