"""What a manifest names besides itself: the entrypoint, schema files, code/requirements.txt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from skillyard.domain.manifest import Manifest, SchemaSource
from skillyard.domain.manifest_needs import is_requirement, requirement_lines
from skillyard.domain.manifest_report import Path
from skillyard.domain.skill import Needs
from skillyard.stores.skills import entrypoint, schema
from skillyard.stores.skills.findings import Findings
from skillyard.stores.skills.json_lines import json_lines
from skillyard.stores.skills.toml_file import TomlFile, line_at
from skillyard.stores.skills.tree import Tree

MANIFEST = "skill.toml"
REQUIREMENTS = "code/requirements.txt"
MAX_REQUIREMENTS_BYTES = 256 * 1024


def check_entrypoint(tree: Tree, findings: Findings, manifest: Manifest, document: TomlFile) -> None:
    """The entrypoint is a file of the skill and defines the export."""
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
    wrong = entrypoint.complaint(file.data, manifest.runtime.export)
    if wrong:
        line, rule, message = wrong
        findings.error(path, line, rule, message)


def read_schema(
    tree: Tree, findings: Findings, source: SchemaSource, side: str, document: TomlFile
) -> Mapping[str, Any] | None:
    """The schema of one side, None when there is none or it cannot be used."""
    if source.inline is not None:
        return source.inline if _accepts(findings, source.inline, MANIFEST, document.lines, side) else None
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
    return value if _accepts(findings, value, source.file, lines, side) else None


def _accepts(findings: Findings, value: Mapping[str, Any], file: str, lines: Mapping[Path, int], side: str) -> bool:
    fine = True
    for found in schema.complaints(value):
        fine = fine and found.level != "error"
        line = line_at(lines, (side, *found.path))
        message = f"{side}: {found.message}"
        (findings.error if found.level == "error" else findings.warn)(file, line, found.rule, message)
    return fine


def read_needs(tree: Tree, findings: Findings, manifest: Manifest, *, lenient: bool) -> Needs:
    """The declared needs, with the packages of code/requirements.txt among the dependencies."""
    file = tree.files.get(REQUIREMENTS)
    if file is None:
        return manifest.needs
    listed = _requirements(file.data, findings, lenient)
    return replace(manifest.needs, dependencies=tuple(dict.fromkeys((*manifest.needs.dependencies, *listed))))


def _requirements(raw: bytes, findings: Findings, lenient: bool) -> list[str]:
    """Lines that are no requirement stay declared when lenient, so that a run which cannot have them says so."""
    if len(raw) > MAX_REQUIREMENTS_BYTES:
        findings.error(REQUIREMENTS, 0, "requirements-size", f"must have at most {MAX_REQUIREMENTS_BYTES} bytes")
        return []
    found = []
    for line, text in requirement_lines(raw.decode("utf-8-sig", "replace")):
        if not is_requirement(text):
            rule = "must be a requirement such as 'numpy>=2,<3'; URLs, paths and options are not honoured"
            findings.breach(lenient, REQUIREMENTS, line, "requirement", rule)
        found.append(" ".join(text.split()))
    return found
