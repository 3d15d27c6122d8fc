"""The backends that there are. Outside their packages, and the settings of the operator, nothing else names them.

A backend is a module with a ``KIND`` and one line in :data:`BACKENDS`. It is imported when it is first asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from skillyard.domain.sandbox.guarantees import AUTO, Nature
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
    """What a backend is made with. ``run_dir`` is where backends keep what belongs to running sandboxes; ``options``
    are the values of its sections of the settings; ``usual_pids`` is the limit of processes of a run that names none;
    sandboxes with a network are plugged into ``plug``."""

    run_dir: Path
    options: Mapping[str, Any]
    usual_pids: int
    plug: Plug | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """What a backend declares of itself: its nature, the sections of the settings that it reads (a later one wins), and
    how it is made. Making one starts nothing."""

    nature: Nature
    make: Callable[[Place], Backend]
    sections: tuple[str, ...] = ()


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
