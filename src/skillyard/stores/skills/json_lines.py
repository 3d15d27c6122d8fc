"""On which line each value of a JSON document stands (``json`` does not say), for text that ``json`` accepted."""

from __future__ import annotations

import json
import re

from skillyard.domain.skill.manifest_report import Path

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)


def json_lines(text: str) -> dict[Path, int]:
    """The line, from 1, of every value; a member's is that of its name."""
    lines: dict[Path, int] = {}
    path: list[str | int] = []
    line, counted = 1, 0
    key = ""
    for token in _TOKEN.finditer(text):
        line += text.count("\n", counted, token.start())
        counted = token.start()
        match token[0]:
            case "{" | "[":
                lines.setdefault(tuple(path), line)
                path.append(0 if token[0] == "[" else "")
            case "}" | "]" if path:
                path.pop()
            case "," if path and isinstance(last := path[-1], int):
                path[-1] = last + 1
            case ":" if path:
                path[-1] = _text(key)
                lines[tuple(path)] = line
            case _:
                key = token[0]
                if not path or isinstance(path[-1], int):
                    lines.setdefault(tuple(path), line)
    return lines


def _text(token: str) -> str:
    try:
        return str(json.loads(token))
    except ValueError:
        return token
