"""Splitting SKILL.md into front matter and Markdown (agent-skills-format §3).

A byte order mark and CRLF are accepted. Front matter opens on the first line and closes on the next line that is
``---`` and nothing else, so that dashes inside a value do not cut it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FENCE = re.compile(r"---[ \t]*\r?\n?")


class NoFrontMatter(ValueError):
    """The text has no front matter, or it is never closed; ``line`` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Split:
    """``yaml`` between the fences, which starts on line ``first_line`` of the file; ``body`` after them."""

    yaml: str
    body: str
    first_line: int = 2


def split(text: str) -> Split:
    """Raises NoFrontMatter."""
    lines = text.removeprefix("\ufeff").split("\n")
    if _FENCE.fullmatch(lines[0]) is None:
        raise NoFrontMatter("must start with a line '---' that opens the YAML front matter", 1)
    for index, line in enumerate(lines[1:], 1):
        if _FENCE.fullmatch(line):
            return Split("\n".join(lines[1:index]), "\n".join(lines[index + 1 :]))
    raise NoFrontMatter("must close the YAML front matter with a line '---'", len(lines))
