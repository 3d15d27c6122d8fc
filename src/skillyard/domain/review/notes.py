"""Collects findings; no bundle can hide a grave one among many others."""

from __future__ import annotations

from collections import Counter

from skillyard.domain.skill.skill import Finding

EACH = 5
"""Findings of one rule in one file that are told one by one."""
MOST = 500
"""Findings altogether."""

_GRAVITY = {"error": 0, "danger": 1, "warning": 2, "note": 3}


class Notes:
    def __init__(self) -> None:
        self._told: list[Finding] = []
        self._seen: Counter[tuple[str, str, str]] = Counter()

    def danger(self, file: str, line: int, rule: str, message: str) -> None:
        self._add(Finding("danger", file, line, rule, message))

    def warn(self, file: str, line: int, rule: str, message: str, mend: str = "") -> None:
        self._add(Finding("warning", file, line, rule, message, mend))

    def note(self, file: str, line: int, rule: str, message: str, mend: str = "") -> None:
        self._add(Finding("note", file, line, rule, message, mend))

    def add(self, level: str, file: str, line: int, rule: str, message: str) -> None:
        self._add(Finding(level, file, line, rule, message))

    def _add(self, finding: Finding) -> None:
        key = (finding.level, finding.file, finding.rule)
        self._seen[key] += 1
        if self._seen[key] <= EACH:
            self._told.append(finding)

    def told(self) -> tuple[Finding, ...]:
        """Returns the findings, the gravest first, then by place; those left out are counted."""
        more = [
            Finding(level, file, 0, rule, f"and {count - EACH} more places in this file")
            for (level, file, rule), count in self._seen.items()
            if count > EACH
        ]
        found = sorted([*self._told, *more], key=lambda f: (_GRAVITY[f.level], f.file, f.line or 2**31, f.rule))
        if len(found) > MOST:
            message = f"{len(found) - MOST} further findings are left out, the least grave ones"
            found = [*found[:MOST], Finding("warning", ".", 0, "review-partial", message)]
        return tuple(found)


MOST_QUOTED = 60


def quoted(text: str, most: int = MOST_QUOTED) -> str:
    """Returns the beginning of a text of the bundle, in quotes, as one line of printable ASCII."""
    plain = " ".join(text[: 4 * most].split())
    plain = plain.encode("ascii", "backslashreplace").decode("ascii")
    plain = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in plain)
    return f"'{plain[:most]}…'" if len(plain) > most or len(text) > 4 * most else f"'{plain}'"
