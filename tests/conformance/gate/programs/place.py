"""Where the tests of this directory happen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tests.conformance.gate.programs.street import Street
from tests.conformance.gate.programs.world import World
from tests.conformance.gate.programs.yard import Yard, install, packages_in

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """What takes seconds to start is started by :meth:`why_not`, once."""

    world: World
    yard: Yard
    street: Street | None = None
    _known: dict[str, str] = field(default_factory=dict)

    def in_host(self, work: Callable[[], T]) -> T:
        """Its result, worked out where the gate is."""
        return work() if self.street is None else self.street.in_host(work)

    def in_world(self, work: Callable[[], T]) -> T:
        return work() if self.street is None else self.street.in_world(work)

    def why_not(self, what: str) -> str:
        """Have ``packages``, ``postgres`` or ``websockets``; why they cannot be had, or nothing."""
        if what not in self._known:
            start: Mapping[str, Callable[[], str]] = {
                "packages": self._install,
                "postgres": lambda: self.in_world(self.world.add_postgres),
                "websockets": self._start_websockets,
            }
            self._known[what] = start[what]()
        return self._known[what]

    def _install(self) -> str:
        why = install(self.yard.settings.data_dir)
        return f"no index gives the packages of these clients: {why}" if why else ""

    def _start_websockets(self) -> str:
        if why := self.why_not("packages"):
            return why
        packages = packages_in(self.yard.settings.data_dir)
        assert packages is not None
        self.in_world(lambda: self.world.add_websockets(packages))
        return ""
