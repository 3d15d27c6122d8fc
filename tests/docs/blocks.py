"""The fenced code blocks of a Markdown file, and the comment before each that says how it is tested.

<!-- run -->              run it; nothing listens on its data directory
<!-- run: server -->      run it while a server works on its data directory
<!-- not run: REASON -->  do not
<!-- shows -->            this is what the block before it prints; … stands for anything
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (run|shows|not run)(?:: ([^>]+))? -->\n\Z")


@dataclass(frozen=True, slots=True)
class Block:
    """``mark`` is empty where there is none; ``detail`` is what follows its colon."""

    line: int
    language: str
    text: str
    mark: str
    detail: str


def blocks_of(file: Path) -> Iterator[Block]:
    text = file.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        before = text[: found.start()]
        mark = _MARK.search(before)
        yield Block(
            before.count("\n") + 1,
            found[1],
            found[2],
            mark[1] if mark else "",
            (mark[2] or "") if mark else "",
        )
