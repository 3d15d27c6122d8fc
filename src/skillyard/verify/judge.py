"""The judge: what a run and its evidence say. It errs towards *broken*."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from skillyard.client.run import Run
from skillyard.domain.sandbox.guarantees import BOUNDARIES, Level
from skillyard.domain.work.record import Outcome
from skillyard.verify.attack import CONTAINED, Attack, Judgement, Verdict, broken, escaped, not_applicable
from skillyard.verify.prelude import ARMED

if TYPE_CHECKING:
    from skillyard.verify.yard import Yard


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
    if evidence.get("elsewhere"):
        return not_applicable(str(evidence["elsewhere"]))
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
    """Returns whether a run's record claims any of ``walls``, or a guarantee that they bear; an attack that names none
    always counts."""
    borne = [name for name, evidence in BOUNDARIES.items() if not set(evidence.bearing).isdisjoint(walls)]
    return not walls or any(enforced.get(name, Level.MISSING) != Level.MISSING for name in (*walls, *borne))


_FINISHED = frozenset({"", Outcome.EXIT})


def within_its_means(judgement: Judgement, attack: Attack, yard: Yard) -> Judgement:
    """A program that did not work, where the record says that what it rests on is missing, shows nothing. Runs that
    were lost or ended by a limit say more than that, and stay what they are; so does every escape."""
    lacking = [wall for wall in attack.rests_on if yard.enforced.get(wall) == Level.MISSING]
    if judgement.verdict not in (Verdict.BROKEN, Verdict.TOO_TIGHT) or not lacking or not yard.outcomes <= _FINISHED:
        return judgement
    return not_applicable(f"needs what {', '.join(lacking)} would give, and that is not claimed here: {judgement.why}")


def held_to_its_claims(judgement: Judgement, attack: Attack, enforced: Mapping[str, str]) -> Judgement:
    """What nobody claims to stop is no escape."""
    if judgement.verdict is not Verdict.ESCAPED or claims(enforced, attack.walls):
        return judgement
    return not_applicable(f"this isolation claims none of {', '.join(attack.walls)}; it succeeds: {judgement.why}")
