"""skill.toml as a document that knows on which line each key stands (``tomllib`` does not say)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from skillyard.domain.skill.manifest_report import Path
from skillyard.domain.skill.toml_keys import MOST_PARTS, long_key
from skillyard.stores.skills.toml_lines import toml_lines

MAX_BYTES = 256 * 1024

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
    except UnicodeDecodeError as error:
        raise TomlRefused("must be UTF-8", raw.count(b"\n", 0, error.start) + 1) from None
    if line := long_key(text):
        raise TomlRefused(f"must not have keys of more than {MOST_PARTS} parts", line)
    try:
        return TomlFile(tomllib.loads(text), toml_lines(text))
    except tomllib.TOMLDecodeError as error:
        where = _WHERE.search(str(error))
        message = _WHERE.sub("", str(error)).strip()
        raise TomlRefused(f"is not TOML: {message}", int(where[1]) if where else text.count("\n") + 1) from None
    except (RecursionError, ValueError) as error:  # ValueError: an integer of more digits than Python reads
        raise TomlRefused(f"is not TOML that can be read: {error}", 0) from None


def line_at(lines: Mapping[Path, int], path: Path) -> int:
    """The line of ``path`` or of the nearest thing that holds it; 0 when nothing is known."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 0
