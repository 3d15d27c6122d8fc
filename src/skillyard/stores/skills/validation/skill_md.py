"""Reads SKILL.md: its bytes as front matter, lines and Markdown (agent-skills-format §3).

A byte order mark and CRLF are accepted. Front matter opens on the first line and closes on the next line that is
``---`` and nothing else, so that dashes inside a value do not cut it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from skillyard.domain.skill.agent_skill import FrontMatter
from skillyard.domain.skill.report import Path
from skillyard.stores.skills.validation.findings import Findings
from skillyard.values import dataclass

if TYPE_CHECKING:
    from skillyard.yaml_values import Document

NAME = "SKILL.md"
ADVISED_LINES = 500
"""The specification's advice for a body; longer ones are served and warned of."""

_FENCE = re.compile(r"---[ \t]*\r?\n?")
_PLAIN_VALUE = re.compile(r"([A-Za-z][\w-]*):[ \t]+([^\s'\"\[\]{}|>&*!%@`#].*?: .*?)[ \t]*\r?")
_HIDDEN = re.compile("[\u00ad\u180e\u200b\u2060-\u2064\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]")
"""Characters that a reader does not see and a model does (agent-skills-format §5)."""


class NoFrontMatter(ValueError):
    """The text has no front matter, or it is never closed; ``line`` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Split:
    """``yaml`` between the fences, from line ``first_line`` of the file on; ``body`` after them."""

    yaml: str
    body: str
    first_line: int = 2


def split(text: str) -> Split:
    """Splits SKILL.md into front matter and Markdown. Raises NoFrontMatter."""
    lines = text.removeprefix("\ufeff").split("\n")
    if _FENCE.fullmatch(lines[0]) is None:
        raise NoFrontMatter("must start with a line '---' that opens the YAML front matter", 1)
    for index, line in enumerate(lines[1:], 1):
        if _FENCE.fullmatch(line):
            return Split("\n".join(lines[1:index]), "\n".join(lines[index + 1 :]))
    raise NoFrontMatter("must close the YAML front matter with a line '---'", len(lines))


@dataclass(frozen=True, slots=True)
class SkillMd:
    front: FrontMatter
    lines: Mapping[Path, int]
    body: str


def read_skill_md(raw: bytes, findings: Findings, *, lenient: bool, needs_front: bool) -> SkillMd | None:
    """Returns None when the front matter cannot be used. Beside a skill.toml, lenient reading does not need it
    (``needs_front`` is false)."""
    text = _decoded(raw, findings, lenient)
    for line, point in _hidden_characters(text):
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


def _hidden_characters(text: str) -> Iterator[tuple[int, str]]:
    """Yields (line, code point) of the first hidden character of each line.

    These are zero-width characters, tags, and controls of the writing direction.
    """
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        found = _HIDDEN.search(line)
        if found:
            yield number, f"U+{ord(found[0]):04X}"


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
    from skillyard.yaml_values import Document, YamlRefused  # its parser is for servers that have such skills

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
    """Returns the document with plain values that hold ``: `` quoted, a common slip."""
    from skillyard.yaml_values import Document, YamlRefused

    lines = [_quoted(line) for line in text.split("\n")]
    try:
        return Document("\n".join(lines))
    except YamlRefused:
        return None


def _quoted(line: str) -> str:
    match = _PLAIN_VALUE.fullmatch(line)
    return f"{match[1]}: {json.dumps(match[2], ensure_ascii=False)}" if match else line
