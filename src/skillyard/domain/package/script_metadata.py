"""Inline metadata of Python scripts, between ``# /// script`` and ``# ///`` (PEP 723).

The text is hostile: it is never executed, a block has a largest size, and every error is a problem with its line.
"""

from __future__ import annotations

import re
import tomllib
from itertools import islice
from typing import Any

from skillyard.domain.checks import MOST_PARTS, long_key
from skillyard.domain.package.names import within
from skillyard.domain.skill.requirement import is_requirement
from skillyard.values import dataclass

MAX_BLOCK = 64 * 1024
"""Characters of one block, with the comment signs."""
MAX_DEPENDENCIES = 256
MAX_OPENED = 100
"""Opening lines that are looked at."""

_WHERE = re.compile(r"\(at line (\d+), column \d+\)")
OPENING, _CLOSE = "# /// script", "# ///"
_RUN = re.compile(rf"^{OPENING}(?:\n|\Z)((?:#(?: [^\n]*+)?(?:\n|\Z))*+)", re.MULTILINE)
"""An opening line, and every comment line that follows it."""


@dataclass(frozen=True, slots=True)
class ScriptProblem:
    """``line`` counts from 1 in the script; ``harmless`` when PEP 723 tells tools to go on."""

    line: int
    rule: str
    message: str
    harmless: bool = False


@dataclass(frozen=True, slots=True)
class ScriptMetadata:
    """The metadata of one script.

    ``dependencies`` are as they were written, also those that are not valid requirements (each has its problem): a
    caller that leaves one out must say so. ``line`` is where the block begins.
    """

    line: int
    dependencies: tuple[str, ...] = ()
    requires_python: str = ""
    problems: tuple[ScriptProblem, ...] = ()

    def admits_python(self, version: str) -> bool:
        """Returns whether ``requires-python`` admits ``version`` (``3.11.7``).

        A range that is not understood is a problem and admits none.
        """
        return within(version, self.requires_python) is True


def read_script_metadata(source: str) -> ScriptMetadata | None:
    """The metadata of a script, None when it has none. Takes time in proportion to the source."""
    if OPENING not in source:
        return None
    text = source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    runs = list(islice(_RUN.finditer(text), MAX_OPENED))
    blocks = [run for run in runs if _content(run[1])]
    if not blocks:
        return _unclosed(_line(text, runs[0])) if runs else None
    line = _line(text, blocks[0])
    if len(blocks) > 1:
        rule = "must not be a second block of script metadata"
        return ScriptMetadata(line, problems=(ScriptProblem(_line(text, blocks[1]), "script-twice", rule),))
    return _Block(line, _content(blocks[0][1])).read()


def _line(text: str, run: re.Match[str]) -> int:
    return text.count("\n", 0, run.start()) + 1


def _content(comments: str) -> str:
    """The comment lines before the last closing one among them; empty when there is none."""
    return comments[: max(0, f"\n{comments}\n".rfind(f"\n{_CLOSE}\n"))]


def _unclosed(line: int) -> ScriptMetadata:
    message = "is never closed by a line '# ///' and has no effect"
    return ScriptMetadata(line, problems=(ScriptProblem(line, "script-unclosed", message, harmless=True),))


class _Block:
    """The TOML of one block that begins on ``line``, from its comment lines."""

    def __init__(self, line: int, comments: str) -> None:
        self._line = line
        self._text = "" if len(comments) > MAX_BLOCK else "\n".join(text[2:] for text in comments.split("\n"))
        self._problems: list[ScriptProblem] = []
        if not self._text:
            self._problem("script-size", f"must have at most {MAX_BLOCK} characters")

    def read(self) -> ScriptMetadata:
        table = self._table()
        dependencies, python = self._dependencies(table), self._requires_python(table)
        return ScriptMetadata(self._line, dependencies, python, tuple(self._problems))

    def _table(self) -> dict[str, Any]:
        if line := long_key(self._text):
            self._problem("script-toml", f"must not have keys of more than {MOST_PARTS} parts", line)
            return {}
        try:
            return tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            where = _WHERE.search(str(error))
            line = int(where[1]) if where else self._text.rstrip("\n").count("\n") + 1  # "at end of document"
            self._problem("script-toml", f"is not TOML: {_WHERE.sub('', str(error)).strip()}", line)
        except (RecursionError, ValueError) as error:  # ValueError: an integer of more digits than Python reads
            self._problem("script-toml", f"is not TOML that can be read: {error}")
        return {}

    def _dependencies(self, table: dict[str, Any]) -> tuple[str, ...]:
        value = table.get("dependencies", [])
        line = self._at("dependencies")
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._problem("script-type", "dependencies: must be a list of strings", line)
            return ()
        if len(value) > MAX_DEPENDENCIES:
            self._problem("script-size", f"dependencies: must be at most {MAX_DEPENDENCIES}", line)
            return ()
        for text in value:
            if not is_requirement(text):
                rule = "must be a requirement such as 'numpy>=2,<3'; URLs, paths and options are not honoured"
                self._problem("requirement", f"dependencies: {rule}", self._at(text))
        return tuple(" ".join(text.split()) for text in value)

    def _requires_python(self, table: dict[str, Any]) -> str:
        value = table.get("requires-python", "")
        line = self._at("requires-python")
        if not isinstance(value, str):
            self._problem("script-type", "requires-python: must be a string", line)
            return ""
        if within("3", value) is None:
            self._problem("requires-python", "requires-python: must be bounds such as '>=3.11'", line)
        return value.strip()

    def _at(self, text: str) -> int:
        """The first line of the TOML that holds ``text``, from 1; 0 when none does."""
        at = self._text.find(text)
        return self._text.count("\n", 0, at) + 1 if at >= 0 else 0

    def _problem(self, rule: str, message: str, line: int = 0) -> None:
        """``line`` of the TOML; 0 for where the block begins."""
        self._problems.append(ScriptProblem(self._line + line, rule, message))
