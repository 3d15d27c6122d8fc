"""Renders findings: a table for people, one JSON value for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from skillyard.testing.attacks.attack import FAILURES, Attack, Verdict
from skillyard.verify.battery import Finding

VERSION = 1
COLOURS = {
    Verdict.CONTAINED: "green", Verdict.WORKS: "green", Verdict.ESCAPED: "red", Verdict.BROKEN: "red",
    Verdict.TOO_TIGHT: "red", Verdict.NOT_APPLICABLE: "yellow",
}  # fmt: skip


def rows(findings: Sequence[Finding]) -> list[tuple[str, str, str, str]]:
    """Returns the rows of a table: name, verdict, walls, why."""
    return [
        (f.attack.name, f.judgement.verdict.value, " ".join(f.attack.walls), f.judgement.why[:200]) for f in findings
    ]


def described(attacks: Sequence[Attack]) -> list[tuple[str, str, str, str]]:
    """Returns the rows of a table: name, the sentence of the attempt, invariants, walls."""
    return [
        (a.name, a.tries, " ".join(map(str, a.invariants)), " ".join(a.walls) or ("-" if not a.benign else ""))
        for a in attacks
    ]


def counts(findings: Sequence[Finding]) -> dict[str, int]:
    found = Counter(f.judgement.verdict.value for f in findings)
    return {verdict.value: found[verdict.value] for verdict in Verdict if found[verdict.value]}


def summary(findings: Sequence[Finding], seconds: float) -> str:
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts(findings).items())
    return f"{len(findings)} programs in {seconds:.0f} s: {told or 'nothing to do'}"


def failed(findings: Sequence[Finding]) -> bool:
    return any(f.judgement.verdict in FAILURES for f in findings)


def as_dict(findings: Sequence[Finding], enforced: dict[str, str], isolation: str, seconds: float) -> dict[str, Any]:
    """Returns the report; ``enforced`` and ``isolation`` are as the server's records name them."""
    return {
        "version": VERSION,
        "passed": not failed(findings),
        "isolation": isolation,
        "enforced": enforced,
        "seconds": round(seconds, 3),
        "counts": counts(findings),
        "programs": [
            {
                "name": f.attack.name,
                "family": f.attack.family,
                "tries": f.attack.tries,
                "benign": f.attack.benign,
                "invariants": list(f.attack.invariants),
                "walls": list(f.attack.walls),
                "verdict": f.judgement.verdict.value,
                "why": f.judgement.why,
                "seconds": round(f.seconds, 3),
            }
            for f in findings
        ],
    }
