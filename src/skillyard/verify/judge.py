"""The judge: what a run and its evidence say. It errs towards *broken*."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from skillyard.client.run import Run
from skillyard.domain.protection import Level
from skillyard.verify.attack import CONTAINED, Attack, Judgement, Verdict, broken, escaped, not_applicable
from skillyard.verify.prelude import ARMED


def judged(run: Run, ends: Collection[str] = ()) -> Judgement:
    """``ends`` names outcomes and error types that contain the attack, once its program had said that it was armed."""
    if run.ok:
        return weighed(run.output)
    ended = ending(run)
    if ARMED in run.logs_preview.splitlines() and ended & set(ends):
        return CONTAINED
    return broken(f"the run failed: {told(run)}")


def weighed(evidence: Any) -> Judgement:
    """What a program returned by ``evidence()``."""
    if not isinstance(evidence, Mapping) or not isinstance(evidence.get("got"), list):
        return broken("the program returned no evidence")
    if evidence["got"]:
        return escaped("; ".join(map(str, evidence["got"])))
    if evidence["wrong"]:
        return broken("; ".join(map(str, evidence["wrong"])))
    if not evidence["tried"]:
        return broken("the program tried nothing")
    return CONTAINED


def ending(run: Run) -> set[str]:
    """How it ended by all its names: the outcome and the error's type."""
    error = run.error or {}
    return {str(run.raw.get("outcome") or ""), str(error.get("type") or "")} - {""}


def told(run: Run) -> str:
    error = run.error or {}
    last = str(error.get("message") or run.summary).strip().splitlines()
    return f"{error.get('type') or run.raw.get('outcome')}: {last[-1] if last else ''}"[:200]


def claims(enforced: Mapping[str, str], walls: Collection[str]) -> bool:
    """Whether a run's record claims any of ``walls``; an attack that names none always counts."""
    return not walls or any(enforced.get(wall, Level.MISSING) != Level.MISSING for wall in walls)


_REFUSALS = ("Permission denied", "Operation not permitted", "not supported by protocol", "No such file or directory")


def without_neighbours(judgement: Judgement) -> Judgement:
    """Where an isolation without mounts and namespaces refuses even the harmless neighbour of an attack, nothing can be
    shown: that is told as what it is, neither contained nor broken."""
    if judgement.verdict is not Verdict.BROKEN or not any(word in judgement.why for word in _REFUSALS):
        return judgement
    return not_applicable(f"this isolation refuses what is harmless, too: {judgement.why}")


def held_to_its_claims(judgement: Judgement, attack: Attack, enforced: Mapping[str, str]) -> Judgement:
    """What nobody claims to stop is no escape."""
    if judgement.verdict is not Verdict.ESCAPED or claims(enforced, attack.walls):
        return judgement
    return not_applicable(f"this isolation claims none of {', '.join(attack.walls)}; it succeeds: {judgement.why}")
