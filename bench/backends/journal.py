"""Verdicts as they come, kept in a file, so that a suite or a battery that was ended in the middle goes on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from skillyard.testing.attacks.attack import FAILURES, Verdict

BEYOND = "beyond"
"""An attack of another wall, which the backend's nature does not stop."""
FAILED = frozenset({"failed", *FAILURES})
_KINDS = ("passed", "refused", BEYOND, "failed")
_MOST = 300


class Journal:
    """Lines of a name, a verdict and a reason. The last line of a name counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        told = path.read_text("utf-8").splitlines() if path.exists() else []
        self._lines: dict[str, list[str]] = {line[0]: line for line in map(json.loads, told)}

    def __contains__(self, name: str) -> bool:
        return name in self._lines

    def __len__(self) -> int:
        return len(self._lines)

    def note(self, name: str, verdict: str, why: str) -> None:
        """Adds a line at once."""
        self._lines[name] = [name, verdict, " ".join(why.split())[:_MOST]]
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self._lines[name]) + "\n")

    def lines(self, names: Iterable[str] | None = None) -> list[list[str]]:
        """Returns the lines of ``names`` that are there, in their order; all without them."""
        return [self._lines[name] for name in names or self._lines if name in self._lines]

    def forget_failed(self) -> None:
        """Drops what failed, so that it is tried again."""
        kept = [line for line in self._lines.values() if line[1] not in FAILED]
        self._lines = {line[0]: line for line in kept}
        self._path.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")


def of_suite(lines: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Returns the results of a suite: counts by kind, and the rows of all that was not passed."""
    rows = {kind: [[name, why] for name, told, why in lines if told == kind] for kind in _KINDS}
    counts = {kind: len(found) for kind, found in rows.items()}
    return {"counts": counts, **{kind: found for kind, found in rows.items() if kind != "passed"}}


def of_battery(lines: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Returns the results of a battery: counts by verdict, and the rows of what failed or does not apply."""
    counts = Counter(str(verdict) for _, verdict, _ in lines)
    failed = [list(line) for line in lines if line[1] in FAILURES]
    return {
        "counts": dict(counts),
        "failed": failed,
        "not_applicable": [list(line) for line in lines if line[1] == Verdict.NOT_APPLICABLE],
    }
