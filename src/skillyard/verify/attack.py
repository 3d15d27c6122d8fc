"""What an attack is, and what can become of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skillyard.verify.yard import Yard


class Verdict(StrEnum):
    """ESCAPED, BROKEN and TOO_TIGHT fail the battery."""

    CONTAINED = "contained"
    WORKS = "works"
    ESCAPED = "ESCAPED"
    BROKEN = "broken"
    TOO_TIGHT = "too tight"
    NOT_APPLICABLE = "not applicable"


FAILURES = frozenset({Verdict.ESCAPED, Verdict.BROKEN, Verdict.TOO_TIGHT})


@dataclass(frozen=True, slots=True)
class Judgement:
    """``why``: what was got, what went wrong, or why it does not apply; empty when all is well."""

    verdict: Verdict
    why: str = ""


CONTAINED = Judgement(Verdict.CONTAINED)


def escaped(why: str) -> Judgement:
    return Judgement(Verdict.ESCAPED, why)


def broken(why: str) -> Judgement:
    return Judgement(Verdict.BROKEN, why)


def not_applicable(why: str) -> Judgement:
    return Judgement(Verdict.NOT_APPLICABLE, why)


class Need(StrEnum):
    """What an attack must have besides a server that runs code."""

    IN_PROCESS = "a runtime in this process"
    CANARIES = "planted targets (--canary)"


Steps = Callable[["Yard"], Awaitable[Judgement]]


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack, or one benign program.

    ``tries`` is one sentence. ``invariants`` are numbers of SECURITY.md. ``walls`` name the protections that stand in
    its way: when a run's record claims none of them, the attack does not apply. ``rests_on`` names those that give its
    programs what they need, such as a loopback of their own: where the record says that one is missing, a program that
    does not work does not apply. ``alone``: it measures or fills, and nothing else may run beside it.
    """

    name: str
    family: str
    tries: str
    invariants: tuple[int, ...]
    walls: tuple[str, ...]
    steps: Steps
    needs: frozenset[Need] = frozenset()
    alone: bool = False
    benign: bool = False
    rests_on: tuple[str, ...] = ()
