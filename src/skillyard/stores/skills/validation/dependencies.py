"""The Python packages that a bundle asks for outside its manifest: requirements files, and the inline metadata of its
scripts (PEP 723). Bundles of both formats have them, and everything in them is hostile."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import replace

from skillyard.domain.package.script_metadata import ScriptMetadata, read_script_metadata
from skillyard.domain.skill.requirement import is_requirement, requirement_lines
from skillyard.domain.skill.skill import Needs
from skillyard.stores.skills.tree import Tree
from skillyard.stores.skills.validation.findings import Findings

REQUIREMENTS = ("requirements.txt", "scripts/requirements.txt", "code/requirements.txt")
SCRIPTS = ("scripts", "code")
"""Directories whose scripts are read for inline metadata; what lies deeper in them is a library's."""

MAX_REQUIREMENTS_BYTES = 256 * 1024
MAX_DEPENDENCIES = 256
"""Of one skill, from all its files."""
MAX_TEXT = 1000


def read_needs(tree: Tree, findings: Findings, declared: Needs, *, lenient: bool) -> Needs:
    """``declared`` with every package that the files of the bundle ask for.

    What is no requirement stays declared when lenient, so that a run which cannot have it says so.
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
