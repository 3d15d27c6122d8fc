"""Problems of documents as findings with file and line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from skillyard.domain.skill.report import Path, Problem
from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.validation.toml import line_at


class Findings(list[Finding]):
    """The findings of one bundle; files are relative to its root."""

    def error(self, file: str, line: int, rule: str, message: str, mend: str = "") -> None:
        self.append(Finding("error", file, line, rule, message, mend))

    def warn(self, file: str, line: int, rule: str, message: str, mend: str = "") -> None:
        self.append(Finding("warning", file, line, rule, message, mend))

    def breach(self, lenient: bool, file: str, line: int, rule: str, message: str) -> None:
        self.append(Finding("warning" if lenient else "error", file, line, rule, message))

    def take(self, problems: Iterable[Problem], file: str, lines: Mapping[Path, int], otherwise: int = 1) -> None:
        """Takes the problems of a document. Keys stand on ``lines``, missing ones at ``otherwise``."""
        for problem in problems:
            line = line_at(lines, problem.path) or otherwise
            self.append(Finding(problem.level, file, line, problem.rule, problem.message, problem.mend))

    @property
    def failed(self) -> bool:
        return any(finding.level == "error" for finding in self)
