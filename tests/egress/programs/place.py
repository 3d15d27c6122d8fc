"""Where the tests of this directory happen."""

from __future__ import annotations

from dataclasses import dataclass

from tests.egress.programs.street import Street
from tests.egress.programs.world import World
from tests.egress.programs.yard import Yard


@dataclass(frozen=True, slots=True)
class Place:
    """``missing`` says why the clients' packages are not here; empty when they are."""

    world: World
    yard: Yard
    missing: str = ""
    street: Street | None = None
