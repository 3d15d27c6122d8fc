"""Reads TOML with the line of each key and value, which ``tomllib`` does not tell."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from skillyard.domain.checks import MOST_PARTS, long_key
from skillyard.domain.skill.report import Path
from skillyard.values import dataclass

MAX_BYTES = 256 * 1024

_WHERE = re.compile(r"\(at line (\d+), column \d+\)")


class TomlRefused(ValueError):
    """The bytes are not TOML; ``line`` counts from 1, and is 0 when it is not known."""

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
    """Returns the line of ``path`` or of the nearest value that holds it; 0 when none is known."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 0


_BLANK = re.compile(r"[ \t]*")
_BETWEEN = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"""(?:"{1,2})?'
    r"|'''(?:[^']|'(?!''))*'''(?:'{1,2})?"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_PLAIN = re.compile(r"[^,\]}#\n]+")


def toml_lines(text: str) -> dict[Path, int]:
    """Returns the line, from 1, of every table, key and element. ``text`` is TOML that ``tomllib`` accepted:
    nothing is checked again, and one pass over the characters is enough (TOML 1.0.0)."""
    return _Reading(text).lines


class _Reading:
    def __init__(self, text: str) -> None:
        self.lines: dict[Path, int] = {}
        self._text = text
        self._at = 0
        self._line = 1
        self._counted = 0
        self._tables: dict[Path, int] = {}
        table: Path = ()
        while self._skip(_BETWEEN) < len(text):
            before = self._at
            if text.startswith("[", self._at):
                table = self._header()
            else:
                self._pair(table)
            if self._at == before:
                return

    def _skip(self, pattern: re.Pattern[str]) -> int:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return self._at

    def _eat(self, mark: str) -> bool:
        fits = self._text.startswith(mark, self._at)
        self._at += len(mark) if fits else 0
        return fits

    def _note(self, path: Path) -> None:
        """Lines are counted once: positions only grow."""
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        if path:
            self.lines.setdefault(path, self._line)

    def _header(self) -> Path:
        many = self._eat("[[")
        self._eat("[")
        keys = self._absolute(tuple(self._keys()))
        self._eat("]]" if many else "]")
        self._skip(_PLAIN)  # nothing, in a document that was accepted
        if many:
            index = self._tables[keys] = self._tables.get(keys, -1) + 1
            self._note(keys)
            keys = (*keys, index)
        self._note(keys)
        return keys

    def _absolute(self, keys: Path) -> Path:
        """``a.b`` below ``[[a]]`` means the last element of ``a``."""
        path: Path = ()
        for place, key in enumerate(keys):
            path = (*path, key)
            if place < len(keys) - 1 and path in self._tables:
                path = (*path, self._tables[path])
        return path

    def _keys(self) -> Iterator[str]:
        while True:
            self._skip(_BLANK)
            start = self._at
            quoted = self._text[start : start + 1] in ("'", '"')
            self._skip(_STRING if quoted else _BARE)
            if self._at == start:
                return
            key = self._text[start : self._at]
            yield _unquoted(key) if quoted else key
            self._skip(_BLANK)
            if not self._eat("."):
                return

    def _pair(self, table: Path) -> None:
        start = self._at
        path = table
        for key in self._keys():
            path = (*path, key)
            self._note(path)
        if self._at > start and self._eat("="):
            self._skip(_BLANK)
            self._value(path)

    def _value(self, path: Path) -> None:
        self._note(path)
        if self._eat("["):
            self._array(path)
        elif self._eat("{"):
            self._inline(path)
        elif self._text[self._at : self._at + 1] in ("'", '"'):
            self._skip(_STRING)
        else:
            self._skip(_PLAIN)

    def _array(self, path: Path) -> None:
        index = 0
        while self._skip(_BETWEEN) < len(self._text) and not self._eat("]"):
            before = self._at
            self._value((*path, index))
            index += 1
            self._skip(_BETWEEN)
            self._eat(",")
            if self._at == before:
                return

    def _inline(self, path: Path) -> None:
        while self._skip(_BETWEEN) < len(self._text) and not self._eat("}"):
            before = self._at
            self._pair(path)
            self._skip(_BETWEEN)
            self._eat(",")
            if self._at == before:
                return


def _unquoted(key: str) -> str:
    import tomllib

    try:
        return next(iter(tomllib.loads(f"{key} = 0")))
    except tomllib.TOMLDecodeError:
        return key.strip("\"'")
