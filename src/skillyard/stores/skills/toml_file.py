"""skill.toml as a document that knows on which line each key stands (``tomllib`` does not say)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from skillyard.domain.manifest_report import Path

MAX_BYTES = 256 * 1024

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_DOTTED = rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*"
_HEADER = re.compile(rf"[ \t]*\[\[?[ \t]*({_DOTTED})[ \t]*\]")
_ASSIGN = re.compile(rf"[ \t]*({_DOTTED})[ \t]*=")
_PART = re.compile(_KEY)
_WHERE = re.compile(r"\(at line (\d+), column \d+\)")


class TomlRefused(ValueError):
    """The bytes are no TOML; ``line`` counts from 1, 0 when it is not known."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class TomlFile:
    data: dict[str, Any]
    lines: dict[Path, int] = field(default_factory=dict)


def read_toml(raw: bytes) -> TomlFile:
    """Raises TomlRefused."""
    if len(raw) > MAX_BYTES:
        raise TomlRefused(f"must have at most {MAX_BYTES} bytes", 0)
    try:
        text = raw.decode("utf-8")
        return TomlFile(tomllib.loads(text), _lines(text))
    except UnicodeDecodeError as error:
        raise TomlRefused("must be UTF-8", raw.count(b"\n", 0, error.start) + 1) from None
    except tomllib.TOMLDecodeError as error:
        where = _WHERE.search(str(error))
        message = _WHERE.sub("", str(error)).strip()
        raise TomlRefused(f"is no TOML: {message}", int(where[1]) if where else text.count("\n") + 1) from None
    except (RecursionError, ValueError) as error:  # ValueError: an integer of more digits than Python reads
        raise TomlRefused(f"is no TOML that can be read: {error}", 0) from None


def _lines(text: str) -> dict[Path, int]:
    """Keys by their first line. Multi-line strings are skipped; a key in an inline table has its table's line."""
    found: dict[Path, int] = {}
    table: Path = ()
    quote = ""
    for number, line in enumerate(text.split("\n"), 1):
        if not quote and (header := _HEADER.match(line)):
            table = _parts(header[1])
            found.setdefault(table, number)
        elif not quote and (assign := _ASSIGN.match(line)):
            found.setdefault(table + _parts(assign[1]), number)
        quote = _open_quote(line, quote)
    return found


def _parts(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))


def _open_quote(line: str, quote: str) -> str:
    """The triple quote that is still open after ``line``."""
    while line:
        marks = [quote] if quote else ['"""', "'''"]
        at, mark = min(((line.find(m), m) for m in marks if m in line), default=(-1, ""))
        if not mark:
            return quote
        line, quote = line[at + 3 :], "" if quote else mark
    return quote


def line_at(lines: Mapping[Path, int], path: Path) -> int:
    """The line of ``path`` or of the nearest thing that holds it; 0 when nothing is known."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 0
