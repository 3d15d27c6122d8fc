"""Where the tests of this directory happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tests.egress.programs.street import Street
from tests.egress.programs.world import World
from tests.egress.programs.yard import Yard

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """``missing`` says why the clients' packages are not here; empty when they are."""

    world: World
    yard: Yard
    missing: str = ""
    street: Street | None = None

    def in_host(self, work: Callable[[], T]) -> T:
        """Its result, worked out where the gate is."""
        return work() if self.street is None else self.street.in_host(work)
