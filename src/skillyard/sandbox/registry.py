"""The backends that there are. Outside their packages, and the settings of the operator, nothing else names them.

A backend is a module with a ``KIND`` and one line in :data:`BACKENDS`. It is imported when it is first asked about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from skillyard.domain.sandbox.guarantees import AUTO, Nature

if TYPE_CHECKING:
    from skillyard.config.sections import Sections
    from skillyard.ports.gate import Plug
    from skillyard.ports.sandbox import Backend

BACKENDS: dict[str, str] = {
    "native": "skillyard.sandbox.native.backend",
    "gvisor": "skillyard.sandbox.native.grounds.gvisor.backend",
    "landlock": "skillyard.sandbox.native.grounds.landlock.backend",
}
"""The module of each backend, by its name: the best rank first, so that no more are imported than are asked about."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a backend is made with. Backends keep in ``run_dir`` what belongs to running sandboxes; sandboxes with
    a network are plugged into ``plug``."""

    run_dir: Path
    settings: Sections
    plug: Plug | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """What a backend declares of itself: its nature, and how it is made. Making one starts nothing."""

    nature: Nature
    make: Callable[[Place], Backend]


def choices() -> tuple[str, ...]:
    """Returns the names that policy and requests may give: those of backends, and ``auto``."""
    return (*BACKENDS, AUTO)


def kind(name: str) -> Kind:
    """Returns what the backend of that name declares. Raises KeyError for one that there is not."""
    return cast("Kind", import_module(BACKENDS[name]).KIND)


def nature(name: str) -> Nature:
    """Returns what a backend is by its nature; of one that there is not, a nature that is without nothing."""
    return kind(name).nature if name in BACKENDS else Nature()


def best_with_network() -> str:
    """Returns the name of the backend of the best rank whose sandboxes can be given a network."""
    return next(name for name in BACKENDS if nature(name).network)
