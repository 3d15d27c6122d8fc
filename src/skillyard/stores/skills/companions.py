"""What a manifest names besides itself: the entrypoint, schema files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillyard.domain.skill.manifest import Manifest, SchemaSource
from skillyard.domain.skill.manifest_report import Path
from skillyard.stores.skills import entrypoint, schema
from skillyard.stores.skills.findings import Findings
from skillyard.stores.skills.json_lines import json_lines
from skillyard.stores.skills.toml_file import TomlFile, line_at
from skillyard.stores.skills.tree import Tree

MANIFEST = "skill.toml"


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
    tree: Tree, findings: Findings, source: SchemaSource, side: str, document: TomlFile, *, lenient: bool
) -> Mapping[str, Any] | None:
    """The schema of one side, None when there is none or it cannot be used."""
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
