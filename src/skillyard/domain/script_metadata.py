"""Inline metadata of Python scripts: what stands between ``# /// script`` and ``# ///`` (PEP 723).

The text is hostile: it is never executed, a block has a largest size, and what is wrong is a problem with its line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from skillyard.domain.manifest_needs import is_requirement
from skillyard.domain.version_bounds import within

MAX_BLOCK = 64 * 1024
"""Characters of one block."""
MAX_DEPENDENCIES = 256

_WHERE = re.compile(r"\(at line (\d+), column \d+\)")
_OPEN, _CLOSE = "# /// script", "# ///"


@dataclass(frozen=True, slots=True)
class ScriptProblem:
    """``line`` counts from 1 in the script; ``harmless`` when PEP 723 tells tools to go on."""

    line: int
    rule: str
    message: str
    harmless: bool = False


@dataclass(frozen=True, slots=True)
class ScriptMetadata:
    """What one script declares. ``dependencies`` are as they were written, those that are no requirement too (each has
    its problem): who leaves out what it cannot give must say so. ``line`` is where the block begins."""

    line: int
    dependencies: tuple[str, ...] = ()
    requires_python: str = ""
    problems: tuple[ScriptProblem, ...] = ()

    def admits_python(self, version: str) -> bool:
        """Whether ``requires-python`` admits ``version`` (``3.11.7``); a range that is not understood is a problem and
        admits none."""
        return within(version, self.requires_python) is True


def read_script_metadata(source: str) -> ScriptMetadata | None:
    """The metadata of a script, None when it has none."""
    if _OPEN not in source:
        return None
    lines = source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    blocks = list(_blocks(lines))
    if not blocks:
        return _unclosed(lines)
    start, end = blocks[0]
    if len(blocks) > 1:
        wrong = ScriptProblem(blocks[1][0] + 1, "script-twice", "must not be a second block of script metadata")
        return ScriptMetadata(start + 1, problems=(wrong,))
    return _Block(start + 2, [line[2:] for line in lines[start + 1 : end]]).read()


def _blocks(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """First and last line of each block, from 0. A block ends at the last closing line of its run of comments."""
    at = 0
    while at < len(lines):
        if lines[at] != _OPEN:
            at += 1
            continue
        start, end = at, 0
        at += 1
        while at < len(lines) and (lines[at] == "#" or lines[at].startswith("# ")):
            end = at if lines[at] == _CLOSE else end
            at += 1
        if end > start + 1:
            yield start, end
            at = end + 1


def _unclosed(lines: Sequence[str]) -> ScriptMetadata | None:
    if _OPEN not in lines:
        return None
    line = lines.index(_OPEN) + 1
    message = "is never closed by a line '# ///' and has no effect"
    return ScriptMetadata(line, problems=(ScriptProblem(line, "script-unclosed", message, harmless=True),))


class _Block:
    """The TOML of one block; ``first`` is the line of its first line in the script."""

    def __init__(self, first: int, lines: Sequence[str]) -> None:
        self._first = first
        self._lines = lines
        self._problems: list[ScriptProblem] = []

    def read(self) -> ScriptMetadata:
        table = self._table()
        dependencies, python = self._dependencies(table), self._requires_python(table)
        return ScriptMetadata(self._first - 1, dependencies, python, tuple(self._problems))

    def _table(self) -> dict[str, Any]:
        text = "\n".join(self._lines)
        if len(text) > MAX_BLOCK:
            self._problem("", "script-size", f"must have at most {MAX_BLOCK} characters")
            return {}
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            where = _WHERE.search(str(error))
            at = int(where[1]) - 1 if where else len(self._lines) - 1  # otherwise it says "at end of document"
            message = _WHERE.sub("", str(error)).strip()
            self._problems.append(ScriptProblem(self._first + at, "script-toml", f"is no TOML: {message}"))
        except (RecursionError, ValueError) as error:  # ValueError: an integer of more digits than Python reads
            self._problem("", "script-toml", f"is no TOML that can be read: {error}")
        return {}

    def _dependencies(self, table: dict[str, Any]) -> tuple[str, ...]:
        value = table.get("dependencies", [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._problem("dependencies", "script-type", "dependencies: must be a list of strings")
            return ()
        if len(value) > MAX_DEPENDENCIES:
            self._problem("dependencies", "script-size", f"dependencies: must be at most {MAX_DEPENDENCIES}")
            return ()
        for text in value:
            if not is_requirement(text):
                rule = "must be a requirement such as 'numpy>=2,<3'; URLs, paths and options are not honoured"
                self._problem(text, "requirement", f"dependencies: {rule}")
        return tuple(" ".join(text.split()) for text in value)

    def _requires_python(self, table: dict[str, Any]) -> str:
        value = table.get("requires-python", "")
        if not isinstance(value, str):
            self._problem("requires-python", "script-type", "requires-python: must be a string")
            return ""
        if within("3", value) is None:
            self._problem("requires-python", "requires-python", "requires-python: must be bounds such as '>=3.11'")
        return value.strip()

    def _problem(self, near: str, rule: str, message: str) -> None:
        """At the first line that holds ``near``."""
        at = next((number for number, line in enumerate(self._lines) if near and near in line), -1)
        self._problems.append(ScriptProblem(self._first + at, rule, message))
