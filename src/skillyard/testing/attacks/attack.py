"""The form of an attack, the place where it runs, and the judge of its runs.

``skillyard verify`` runs attacks through the public API of an installation, the conformance suite of sandboxes over a
backend: each gives a :class:`Place`. The judge errs towards *broken*.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from skillyard.domain.sandbox.guarantees import BOUNDARIES, WALLS, Level
from skillyard.domain.work.record import Outcome
from skillyard.testing.attacks.canaries import Canaries
from skillyard.testing.attacks.prelude import ARMED, program


class Verdict(StrEnum):
    """ESCAPED, BROKEN and TOO_TIGHT are failures."""

    CONTAINED = "contained"
    WORKS = "works"
    ESCAPED = "ESCAPED"
    BROKEN = "broken"
    TOO_TIGHT = "too tight"
    NOT_APPLICABLE = "not applicable"


FAILURES = frozenset({Verdict.ESCAPED, Verdict.BROKEN, Verdict.TOO_TIGHT})


@dataclass(frozen=True, slots=True)
class Judgement:
    """``why`` says what an attack got, what went wrong, or why it does not apply."""

    verdict: Verdict
    why: str = ""


CONTAINED = Judgement(Verdict.CONTAINED)
WORKS = Judgement(Verdict.WORKS)


def escaped(why: str) -> Judgement:
    return Judgement(Verdict.ESCAPED, why)


def broken(why: str) -> Judgement:
    return Judgement(Verdict.BROKEN, why)


def too_tight(why: str) -> Judgement:
    return Judgement(Verdict.TOO_TIGHT, why)


def not_applicable(why: str) -> Judgement:
    return Judgement(Verdict.NOT_APPLICABLE, why)


class NotShown(Exception):
    """A program did not run as it should, so that nothing was shown."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that ended. ``ends`` names its outcome, the type of its error and the limits that it met; ``why`` describes
    its end in a line. ``cpu_ms`` and ``wall_ms`` are as the host counted them."""

    ok: bool
    output: Any
    log: str
    ends: frozenset[str]
    why: str
    cpu_ms: float | None = None
    wall_ms: float | None = None

    @property
    def armed(self) -> bool:
        """Whether the program had shown that it works and was about to attack."""
        return ARMED in self.log.splitlines()

    def given(self) -> Any:
        """Returns what the program returned. Raises NotShown when the run failed or the program was wrong."""
        if not self.ok:
            raise NotShown(f"the run failed: {self.why}")
        if isinstance(self.output, Mapping) and self.output.get("wrong"):
            raise NotShown("; ".join(map(str, self.output["wrong"])))
        return self.output


class Need(StrEnum):
    """The needs of an attack besides a place that runs code."""

    IN_PROCESS = "a runtime in this process"
    CANARIES = "planted targets (--canary)"


class Place(ABC):
    """Where programs run. ``levels`` are those of the protections that are not the kernel's, ``hidden`` the paths of
    this host that nothing inside may see. ``enforced`` holds the levels that the runs so far claimed, ``outcomes`` how
    they ended. Programs get ``patience`` times the time that they ask for."""

    levels: Mapping[str, str]
    canaries: Canaries | None
    hidden: Sequence[str]
    enforced: dict[str, str]
    outcomes: set[str]
    patience: float = 1.0

    @property
    @abstractmethod
    def offers(self) -> frozenset[Need]:
        """The needs that this place meets."""

    @abstractmethod
    async def run(self, code: str, args: Mapping[str, Any] | None = None, **limits: Any) -> Ran:
        """Runs source whose ``main`` is called with ``args``."""

    async def attack(self, body: str, args: Mapping[str, Any] | None = None, **limits: Any) -> Ran:
        """Runs a body in the language of :mod:`skillyard.testing.attacks.prelude`."""
        return await self.run(program(body, self.levels), args, **limits)

    async def at_once(self, body: str, *each: Mapping[str, Any]) -> tuple[Any, Any]:
        """Runs a body twice, with these arguments and ``hold_s``, and returns what both gave. ``body`` tells when it
        ``began`` and ``ended``. Raises NotShown when a run failed, or the two were never at work at the same time."""
        for hold_s in (0.5, 2.5):
            runs = await asyncio.gather(*(self.attack(body, {**args, "hold_s": hold_s}) for args in each))
            one, two = (run.given() for run in runs)
            if max(one["began"], two["began"]) + hold_s / 3 < min(one["ended"], two["ended"]):
                return one, two
        raise NotShown("two runs were never at work at once")


Steps = Callable[[Any], Awaitable[Judgement]]
"""Takes a Place; attacks of ``skillyard verify`` alone take its own."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack, or one benign program.

    ``tries`` is one sentence. ``invariants`` are numbers of SECURITY.md. ``walls`` name the protections that stand in
    its way: where none of them is claimed, the attack does not apply. ``rests_on`` names those that give its programs
    what they need, such as a loopback of their own: where one is missing, a program that does not work does not apply.
    ``alone``: it measures or fills, and nothing else may run beside it.
    """

    name: str
    family: str
    tries: str
    steps: Steps
    invariants: tuple[int, ...] = ()
    walls: tuple[str, ...] = ()
    needs: Collection[Need] = ()
    alone: bool = False
    benign: bool = False
    rests_on: tuple[str, ...] = ()


class Family:
    """Collects the attacks of one family, in the order in which they are written."""

    def __init__(self, name: str, *, walls: tuple[str, ...] = (), invariants: tuple[int, ...] = ()) -> None:
        self.name = name
        self._defaults = {"walls": walls, "invariants": invariants}
        self.attacks: list[Attack] = []

    def program(
        self,
        name: str,
        tries: str,
        body: str,
        *,
        ends: Collection[str] = (),
        limits: Mapping[str, Any] | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Adds one run of ``body``. ``ends``: see :func:`judged`; ``options`` are fields of Attack."""

        async def steps(place: Place) -> Judgement:
            return judged(await place.attack(body, args, **(limits or {})), ends)

        self.steps(name, tries, steps, **options)

    def steps(self, name: str, tries: str, steps: Steps, **options: Any) -> None:
        """Adds an attack of several runs, or with a judge of its own."""
        made = Attack(f"{self.name}-{name}", self.name, tries, steps, **{**self._defaults, **options})
        self.attacks.append(made)


def judged(ran: Ran, ends: Collection[str] = ()) -> Judgement:
    """Judges a run. ``ends`` names outcomes and error types that contain the attack, once its program was armed."""
    if ran.ok:
        return weighed(ran.output)
    if ran.armed and not ran.ends.isdisjoint(ends):
        return CONTAINED
    return broken(f"the run failed: {ran.why}")


def weighed(evidence: Any) -> Judgement:
    """Judges what a program returned by ``evidence()``."""
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


async def tried(place: Place, attack: Attack) -> Judgement:
    """Runs an attack and judges it by what its runs claimed. Raises what its steps raise, but NotShown."""
    if missing := sorted(set(attack.needs) - place.offers):
        return not_applicable(f"needs {', '.join(missing)}")
    try:
        judgement = await attack.steps(place)
    except NotShown as error:
        judgement = broken(str(error))
    judgement = held_to_its_claims(judgement, attack, place.enforced)
    return within_its_means(judgement, attack, place.enforced, place.outcomes)


def claims(enforced: Mapping[str, str], walls: Collection[str]) -> bool:
    """Returns whether any of ``walls`` is claimed, or a guarantee on them; True for no walls."""
    borne = [name for name, evidence in BOUNDARIES.items() if not set(evidence.bearing).isdisjoint(walls)]
    return not walls or any(enforced.get(name, Level.MISSING) != Level.MISSING for name in (*walls, *borne))


def weaker(enforced: Mapping[str, str]) -> dict[str, str]:
    """Returns the levels of the protections that are not the kernel's.

    A wall that a sandbox does not name is missing where each guarantee that it bears is.
    """
    silent = {wall: Level.MISSING for wall in WALLS if wall not in enforced and _all_missing(enforced, wall)}
    return silent | {name: level for name, level in enforced.items() if level != Level.KERNEL}


def _all_missing(enforced: Mapping[str, str], wall: str) -> bool:
    borne = [name for name, evidence in BOUNDARIES.items() if wall in evidence.bearing]
    return bool(borne) and all(enforced.get(name) == Level.MISSING for name in borne)


def held_to_its_claims(judgement: Judgement, attack: Attack, enforced: Mapping[str, str]) -> Judgement:
    """An attack that nobody claims to stop does not escape."""
    if judgement.verdict is not Verdict.ESCAPED or claims(enforced, attack.walls):
        return judgement
    return not_applicable(f"this isolation claims none of {', '.join(attack.walls)}; it succeeds: {judgement.why}")


def within_its_means(
    judgement: Judgement, attack: Attack, enforced: Mapping[str, str], outcomes: Collection[str]
) -> Judgement:
    """A program that did not work where something that it rests on is missing shows nothing. Runs that were lost or
    ended by a limit say more than that, and stay as they are; so does every escape."""
    levels = weaker(enforced)
    lacking = [wall for wall in attack.rests_on if levels.get(wall) == Level.MISSING]
    finished = set(outcomes) <= {"", Outcome.EXIT}
    if judgement.verdict not in (Verdict.BROKEN, Verdict.TOO_TIGHT) or not lacking or not finished:
        return judgement
    return not_applicable(f"needs what {', '.join(lacking)} would give, and that is not claimed here: {judgement.why}")
