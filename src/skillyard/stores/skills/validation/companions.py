"""Reads the files beside a manifest: entrypoint, schemas, examples and requirements.

All of them are hostile, and nothing of them is run.
"""

from __future__ import annotations

import ast
import platform
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from skillyard.domain.package.script_metadata import ScriptMetadata, read_script_metadata
from skillyard.domain.skill.example import PATH, Example, check_examples
from skillyard.domain.skill.manifest import Manifest, SchemaSource
from skillyard.domain.skill.report import Path
from skillyard.domain.skill.requirement import is_requirement, requirement_lines
from skillyard.domain.skill.skill import Needs
from skillyard.stores.skills.tree import Tree
from skillyard.stores.skills.validation import schema
from skillyard.stores.skills.validation.findings import Findings
from skillyard.stores.skills.validation.schema import json_lines
from skillyard.stores.skills.validation.toml import TomlFile, TomlRefused, line_at, read_toml

MANIFEST = "skill.toml"
MAX_BYTES = 1024 * 1024
"""Of an entrypoint."""
MAX_WORDS = 150_000
"""Names, numbers and marks: each becomes up to a kilobyte of a syntax tree, in the process that reads."""

_WORD = re.compile(rb"\w+|[^\w\s]")

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def check_entrypoint(tree: Tree, findings: Findings, manifest: Manifest, document: TomlFile) -> None:
    """Reports an entrypoint that is missing or does not define the export."""
    if manifest.runtime is None:
        return
    path = manifest.runtime.entrypoint
    file = tree.files.get(path)
    if file is None:
        line = document.lines.get(("runtime", "entrypoint"), 1)
        findings.error(
            MANIFEST, line, "entrypoint-missing", f"runtime.entrypoint: the skill has no file '{path[:256]}'"
        )
        return
    wrong = complaint(file.data, manifest.runtime.export)
    if wrong:
        line, rule, message = wrong
        findings.error(path, line, rule, message)


def complaint(source: bytes, export: str) -> tuple[int, str, str] | None:
    """Returns (line, rule, message) unless ``source`` defines ``export`` at its top level.

    Only the syntax tree is read."""
    if len(source) > MAX_BYTES:
        return 0, "entrypoint-size", f"must have at most {MAX_BYTES} bytes"
    if _has_more_words(source):
        return 0, "entrypoint-size", f"must have at most {MAX_WORDS} words and marks"
    try:
        module = _parsed(source)
    except SyntaxError as error:
        return error.lineno or 0, "entrypoint-syntax", f"is no Python: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return 0, "entrypoint-syntax", f"cannot be parsed: {str(error) or type(error).__name__}"
    if any(isinstance(node, _Function) and node.name == export for node in module.body):
        return None
    return 0, "export-missing", f"must define the function '{export}' at its top level"


def _has_more_words(source: bytes) -> bool:
    return len(source) > MAX_WORDS and next(islice(_WORD.finditer(source), MAX_WORDS, None), None) is not None


def _parsed(source: bytes) -> ast.Module:
    with warnings.catch_warnings():  # an odd escape in a skill is not our warning
        warnings.simplefilter("ignore")
        return ast.parse(source)


def read_schema(
    tree: Tree, findings: Findings, source: SchemaSource, side: str, document: TomlFile, *, lenient: bool
) -> Mapping[str, Any] | None:
    """Returns the schema of one side; None when it is absent or cannot be used."""
    if source.inline is not None:
        return source.inline if _accepts(findings, source.inline, MANIFEST, document.lines, side, lenient) else None
    if source.file is None:
        return None
    file = tree.files.get(source.file)
    if file is None:
        line = document.lines.get((f"{side}_schema",), 1)
        findings.error(MANIFEST, line, "schema-missing", f"{side}_schema: the skill has no file '{source.file[:256]}'")
        return None
    try:
        value = schema.read_json(file.data)
    except schema.NotJson as error:
        findings.error(source.file, error.line, "schema-json", str(error))
        return None
    lines = {(side, *path): line for path, line in json_lines(file.data.decode("utf-8-sig")).items()}
    return value if _accepts(findings, value, source.file, lines, side, lenient) else None


def _accepts(
    findings: Findings, value: Mapping[str, Any], file: str, lines: Mapping[Path, int], side: str, lenient: bool
) -> bool:
    fine = True
    for found in schema.complaints(value):
        fine = fine and found.is_fine(lenient=lenient)
        line = line_at(lines, (side, *found.path))
        findings.breach(found.is_fine(lenient=lenient), file, line, found.rule, f"{side}: {found.message}")
    return fine


def read_examples(tree: Tree, findings: Findings, *, executable: bool, lenient: bool) -> list[Example]:
    """Returns the examples of ``tests/examples.toml``: none when it is missing or one is wrong."""
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
    fine = [
        _accepts_expectation(findings, index, example, document.lines, lenient)
        for index, example in enumerate(examples)
    ]
    return examples if all(fine) else []


def _accepts_expectation(
    findings: Findings, index: int, example: Example, lines: Mapping[Path, int], lenient: bool
) -> bool:
    """Returns whether the schema that an example expects can be applied."""
    where = ("example", index, "expect", "schema")
    fine = True
    for found in schema.complaints(example.expect.schema or {}):
        fine = fine and found.is_fine(lenient=lenient)
        line = line_at(lines, (*where, *found.path))
        findings.breach(lenient or found.level == "warning", PATH, line, found.rule, f"schema: {found.message}")
    return fine


REQUIREMENTS = ("requirements.txt", "scripts/requirements.txt", "code/requirements.txt")
SCRIPTS = ("scripts", "code")
"""Directories whose scripts are read for inline metadata; what lies deeper in them is a library's."""

MAX_REQUIREMENTS_BYTES = 256 * 1024
MAX_DEPENDENCIES = 256
"""Of one skill, from all its files."""
MAX_TEXT = 1000


def read_needs(tree: Tree, findings: Findings, declared: Needs, *, lenient: bool) -> Needs:
    """Returns ``declared`` with every package that the files of the bundle ask for.

    When lenient, text that is not a requirement stays, so that a run which cannot have it says so.
    """
    found = [*declared.dependencies]
    for path in REQUIREMENTS:
        if path in tree.files:
            found += _listed(path, tree.files[path].data, findings, lenient)
    for path, metadata in _scripts(tree):
        found += map(_shown, metadata.dependencies)
        _tell(path, metadata, findings, lenient)
    dependencies = tuple(dict.fromkeys(found))
    if len(dependencies) > MAX_DEPENDENCIES:
        message = f"the skill asks for {len(dependencies)} packages; at most {MAX_DEPENDENCIES} are allowed"
        findings.error(".", 0, "dependencies-many", message)
        return declared
    return replace(declared, dependencies=dependencies)


def _listed(path: str, raw: bytes, findings: Findings, lenient: bool) -> list[str]:
    if len(raw) > MAX_REQUIREMENTS_BYTES:
        findings.error(path, 0, "requirements-size", f"must have at most {MAX_REQUIREMENTS_BYTES} bytes")
        return []
    found = []
    for line, text in requirement_lines(raw.decode("utf-8-sig", "replace")):
        if not is_requirement(text):
            rule = "must be a requirement such as 'numpy>=2,<3'; URLs, paths and options are not honoured"
            findings.breach(lenient, path, line, "requirement", rule)
        found.append(_shown(" ".join(text.split())))
    return found


def _shown(text: str) -> str:
    """No requirement is that long, so what is cut can be none."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def _scripts(tree: Tree) -> Iterator[tuple[str, ScriptMetadata]]:
    for path, file in tree.files.items():
        directory, _, name = path.rpartition("/")
        if directory in SCRIPTS and name.endswith(".py") and b"# /// script" in file.data:
            metadata = read_script_metadata(file.data.decode("utf-8", "replace"))
            if metadata is not None:
                yield path, metadata


def _tell(path: str, metadata: ScriptMetadata, findings: Findings, lenient: bool) -> None:
    for problem in metadata.problems:
        if problem.harmless:
            findings.warn(path, problem.line, problem.rule, problem.message)
        else:
            findings.breach(lenient, path, problem.line, problem.rule, problem.message)
    if not metadata.problems and not metadata.admits_python(platform.python_version()):
        message = f"asks for Python {metadata.requires_python[:64]}; runs have Python {platform.python_version()} here"
        findings.warn(path, metadata.line, "python-version", message)
