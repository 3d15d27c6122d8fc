"""A check of the suite: a promise of the sandbox port, and how one is held to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from skillyard.domain.sandbox.guarantees import ABILITIES, BOUNDARIES, Level, Probe, Protection, guarantees
from skillyard.testing.sandbox_suite.ground import Ground, bytes_of, processes

SURVIVAL = "survival"
"""The need of a check, beside protections, that a sandbox outlives the server that made it."""

DEADLINE_S = 60.0


class Failed(AssertionError):
    """The backend broke a promise; the message says which and what was seen instead."""


class NotApplicable(Exception):
    """A check tells nothing of this backend; the message says why."""


def expect(held: object, promise: str, seen: object = None) -> None:
    """Raises Failed unless ``held``. Unlike ``assert`` it is there under ``python -O`` too."""
    if not held:
        raise Failed(promise if seen is None else f"{promise}; seen: {seen!r:.500}")


def expect_gone(marker: str, when: str) -> None:
    """Raises Failed when a process with ``marker`` is left."""
    left = processes(marker)
    expect(not left, f"no process is left {when}", [bytes_of(f"/proc/{pid}/cmdline")[:200] for pid in left])


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of the port.

    ``needs`` names guarantees, walls and abilities (and :data:`SURVIVAL`) without which the promise is not made; of
    ``any_of`` one is enough.
    """

    name: str
    section: str
    needs: frozenset[str]
    function: Callable[[Ground], Awaitable[None]]
    any_of: frozenset[str] = frozenset()

    @property
    def id(self) -> str:
        return f"{self.section}-{self.name}"

    def lacks(self, ground: Ground, probe: Probe) -> str:
        """Returns why the backend makes no such promise here; empty when it does."""
        lacking = [_lacking(name, ground, probe) for name in sorted(self.needs)]
        others = [_lacking(name, ground, probe) for name in sorted(self.any_of)]
        return "; ".join(reason for reason in (*lacking, *(others if all(others) else ())) if reason)

    async def run(self, ground: Ground) -> None:
        """Holds the backend to the promise.

        Raises Failed, NotApplicable, TimeoutError after :data:`DEADLINE_S` of the ground's patience, and what the
        backend raised.
        """
        if reason := self.lacks(ground, await ground.backend.probe()):
            raise NotApplicable(reason)
        async with asyncio.timeout(DEADLINE_S * ground.patience):
            await self.function(ground)


class Section:
    """The checks of one file, in the order in which they are written."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.checks: list[Check] = []

    def check(
        self, *needs: str
    ) -> Callable[[Callable[[Ground], Awaitable[None]]], Callable[[Ground], Awaitable[None]]]:
        def register(function: Callable[[Ground], Awaitable[None]]) -> Callable[[Ground], Awaitable[None]]:
            name = getattr(function, "__name__", "").strip("_")
            self.checks.append(Check(name, self.name, frozenset(needs), function))
            return function

        return register


class Status(StrEnum):
    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Verdict:
    check: Check
    status: Status
    reason: str = ""


async def examine(check: Check, ground: Ground) -> Verdict:
    """Runs one check. Any exception of it is a failure, so that a run over all of them goes on."""
    try:
        await check.run(ground)
    except NotApplicable as reason:
        return Verdict(check, Status.SKIPPED, str(reason))
    except TimeoutError:
        return Verdict(check, Status.FAILED, f"not done after {DEADLINE_S * ground.patience:.0f} s")
    except Exception as failure:  # noqa: BLE001 - the verdict carries it
        return Verdict(check, Status.FAILED, f"{type(failure).__name__}: {failure}")
    return Verdict(check, Status.PASSED)


async def examine_all(checks: Iterable[Check], ground: Ground) -> list[Verdict]:
    """Returns one verdict for each check, in order."""
    return [await examine(check, ground) for check in checks]


def _lacking(name: str, ground: Ground, probe: Probe) -> str:
    if name == SURVIVAL:
        return "" if ground.reopen else f"{SURVIVAL}: {probe.facts.get(SURVIVAL, 'not offered')}"
    if name == "egress" and ground.gate is None:
        return f"{name}: the suite was given no gate"
    if name in BOUNDARIES:
        stands = guarantees(probe.protections, ground.backend.nature)[name]
        return f"{name}: missing" if stands.attestor is Level.MISSING else ""
    offered = probe.abilities if name in ABILITIES else probe.protections
    if name not in offered and _borne(name, probe):
        return ""
    have = offered.get(name, Protection(Level.MISSING, why="the backend does not name it"))
    return f"{name}: {have.why or 'missing'}" if have.level is Level.MISSING else ""


def _borne(wall: str, probe: Probe) -> bool:
    """Returns whether a backend without that wall attests everything that the wall bears.

    It then promises the effects of the wall, except of a filter, since a kernel of its own may answer the calls that a
    filter refuses.
    """
    borne = [name for name, walls in BOUNDARIES.items() if wall in walls.bearing and wall != "seccomp"]
    attested = [probe.protections[name].level for name in borne if name in probe.protections]
    return bool(borne) and len(attested) == len(borne) and Level.MISSING not in attested
