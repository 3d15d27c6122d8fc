"""Attacks of the usual shape: one program, one run, the common judge."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from skillyard.verify.attack import Attack, Judgement, Need, Steps
from skillyard.verify.judge import judged
from skillyard.verify.yard import Yard


class Family:
    """Collects the attacks of one family, in the order in which they are written."""

    def __init__(self, name: str, *, walls: tuple[str, ...] = (), invariants: tuple[int, ...] = ()) -> None:
        self.name = name
        self._walls = walls
        self._invariants = invariants
        self.attacks: list[Attack] = []

    def program(
        self,
        name: str,
        tries: str,
        body: str,
        *,
        walls: tuple[str, ...] | None = None,
        invariants: tuple[int, ...] | None = None,
        ends: Collection[str] = (),
        limits: Mapping[str, Any] | None = None,
        args: Mapping[str, Any] | None = None,
        alone: bool = False,
        rests_on: tuple[str, ...] = (),
    ) -> None:
        """One run of ``body``. ``ends``: see :func:`skillyard.verify.judge.judged`."""

        async def steps(yard: Yard) -> Judgement:
            return judged(await yard.attack(body, args, **(limits or {})), ends)

        self.steps(name, tries, steps, walls=walls, invariants=invariants, alone=alone, rests_on=rests_on)

    def steps(
        self,
        name: str,
        tries: str,
        steps: Steps,
        *,
        walls: tuple[str, ...] | None = None,
        invariants: tuple[int, ...] | None = None,
        needs: Collection[Need] = (),
        alone: bool = False,
        benign: bool = False,
        rests_on: tuple[str, ...] = (),
    ) -> None:
        """Several runs, or a judge of its own."""
        self.attacks.append(
            Attack(
                f"{self.name}-{name}",
                self.name,
                tries,
                self._invariants if invariants is None else invariants,
                self._walls if walls is None else walls,
                steps,
                frozenset(needs),
                alone,
                benign,
                rests_on,
            )
        )
