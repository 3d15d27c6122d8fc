"""Reading SKILL.md: its bytes as front matter, lines and Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from skillyard.domain.skill.manifest_agent import FrontMatter
from skillyard.domain.skill.manifest_report import Path
from skillyard.stores.skills.findings import Findings
from skillyard.stores.skills.frontmatter import NoFrontMatter, Split, split
from skillyard.stores.skills.invisible import hidden_characters
from skillyard.stores.skills.yaml_values import Document, YamlRefused

NAME = "SKILL.md"
ADVISED_LINES = 500
"""The specification's advice for a body; longer ones are served and warned of."""

_PLAIN_VALUE = re.compile(r"([A-Za-z][\w-]*):[ \t]+([^\s'\"\[\]{}|>&*!%@`#].*?: .*?)[ \t]*\r?")


@dataclass(frozen=True, slots=True)
class SkillMd:
    front: FrontMatter
    lines: Mapping[Path, int]
    body: str


def read_skill_md(raw: bytes, findings: Findings, *, lenient: bool, needs_front: bool) -> SkillMd | None:
    """None when the front matter cannot be used. ``needs_front``: lenient does without it beside a skill.toml."""
    text = _decoded(raw, findings, lenient)
    for line, point in hidden_characters(text):
        findings.warn(NAME, line, "invisible", f"holds the invisible character {point}, which a reader does not see")
    try:
        parts = split(text)
    except NoFrontMatter as error:
        findings.breach(lenient and not needs_front, NAME, error.line, "front-matter", str(error))
        return SkillMd(FrontMatter({}, {}), {}, text.removeprefix("\ufeff"))
    _check_length(parts, findings)
    document = _document(parts, findings, lenient)
    if document is None:
        return None
    lines = {path: line + parts.first_line - 1 for path, line in document.lines.items()}
    return SkillMd(FrontMatter(document.value or {}, document.source), lines, parts.body)


def _decoded(raw: bytes, findings: Findings, lenient: bool) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        findings.breach(lenient, NAME, line, "encoding", "must be UTF-8")
        return raw.decode("utf-8", "replace")


def _check_length(parts: Split, findings: Findings) -> None:
    lines = parts.body.count("\n")
    if lines > ADVISED_LINES:
        advice = f"the text has {lines} lines; over {ADVISED_LINES} belong into files that are read on demand"
        findings.warn(NAME, 0, "body-length", advice)


def _document(parts: Split, findings: Findings, lenient: bool) -> Document | None:
    try:
        document = Document(parts.yaml)
    except YamlRefused as error:
        repaired = _repaired(parts.yaml) if lenient else None
        line = error.line + parts.first_line - 1
        if repaired is None:
            findings.error(NAME, line, "yaml", f"the front matter {error}")
            return None
        findings.warn(NAME, line, "yaml", "a value holds ': ' and has to be quoted; it is read as if it were")
        document = repaired
    if not isinstance(document.value, dict | None):
        findings.error(NAME, parts.first_line, "yaml", "the front matter must be a map of keys to values")
        return None
    return document


def _repaired(text: str) -> Document | None:
    """The document with plain values that hold ``: `` quoted, a slip that is common in the wild."""
    lines = [_quoted(line) for line in text.split("\n")]
    try:
        return Document("\n".join(lines))
    except YamlRefused:
        return None


def _quoted(line: str) -> str:
    match = _PLAIN_VALUE.fullmatch(line)
    return f"{match[1]}: {json.dumps(match[2], ensure_ascii=False)}" if match else line
