"""Problems of a manifest, and the small typed readers that all the rules share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from skillyard.domain.errors import shown
from skillyard.values import dataclass

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """A rule that a value breaks. ``path`` leads to the value; ``level`` is ``error`` or ``warning``; an empty
    ``mend`` is the rule's own."""

    level: str
    path: Path
    rule: str
    message: str
    mend: str = ""


@dataclass(slots=True)
class Report:
    """Collects problems. ``lenient`` turns a breach of form that harms nobody into a warning."""

    lenient: bool = False
    problems: list[Problem] = field(default_factory=list)

    def error(self, path: Path, rule: str, message: str, value: object = ..., mend: str = "") -> None:
        self._add("error", path, rule, message, value, mend)

    def warn(self, path: Path, rule: str, message: str, value: object = ..., mend: str = "") -> None:
        self._add("warning", path, rule, message, value, mend)

    def breach(self, path: Path, rule: str, message: str, value: object = ..., mend: str = "") -> None:
        """Reports an error when strict, a warning when lenient."""
        self._add("warning" if self.lenient else "error", path, rule, message, value, mend)

    @property
    def failed(self) -> bool:
        return any(problem.level == "error" for problem in self.problems)

    def _add(self, level: str, path: Path, rule: str, message: str, value: object, mend: str) -> None:
        got = "" if value is ... else f" (got {shown(value)})"
        self.problems.append(Problem(level, path, rule, f"{dotted(path)}: {message}{got}", mend))

    def table(self, data: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
        """Returns the table at ``path[-1]``, empty when absent; reports another value."""
        value = data.get(str(path[-1]))
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.error(path, "type", "must be a table", value)
            return {}
        return value

    def text(self, data: Mapping[str, Any], path: Path, *, required: bool = False) -> str | None:
        """Returns the string at ``path[-1]``; None when absent. Reports a blank one and another value."""
        value = data.get(str(path[-1]))
        if value is None:
            if required:
                self.error(path, "required", "is required")
            return None
        if not isinstance(value, str):
            self.error(path, "type", "must be a string", value)
            return None
        if not value.strip():
            self.error(path, "empty", "must not be empty")
            return None
        return value

    def texts(self, data: Mapping[str, Any], path: Path) -> tuple[str, ...]:
        """Returns the strings of the list at ``path[-1]``; reports its other entries."""
        value = data.get(str(path[-1]))
        if value is None:
            return ()
        if not isinstance(value, list):
            self.error(path, "type", "must be a list of strings", value)
            return ()
        for index, item in enumerate(value):
            if not isinstance(item, str) or not item.strip():
                self.error((*path, index), "type", "must be a string that is not empty", item)
        return tuple(item for item in value if isinstance(item, str) and item.strip())

    def unknown_keys(self, data: Mapping[str, Any], path: Path, known: frozenset[str]) -> None:
        """Warns of keys that nothing reads; ``x-*`` is free (skills-protocol §8)."""
        for key in data:
            if key not in known and not key.startswith("x-"):
                names = ", ".join(sorted(known))
                from difflib import get_close_matches  # the only use, of a server that starts without it

                near = get_close_matches(key[:64], known, 1)
                mend = f"is '{near[0]}' meant?" if near else ""
                message = f"is not known and has no effect; known are {names}"
                self.warn((*path, key), "unknown-key", message, mend=mend)


def dotted(path: Path) -> str:
    """``("permissions", "secrets", 2)`` → ``permissions.secrets[2]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{_printable(part)}" if text else _printable(part)
    return text or "the document"


def _printable(key: str) -> str:
    return key[:64].encode("unicode_escape").decode("ascii") if not key.isprintable() else key[:64]
