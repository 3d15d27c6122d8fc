"""The list of backends. Only their own packages and the operator's settings name them besides.

A backend is a module with a ``KIND`` and one line in :data:`BACKENDS`. It is imported when it is first asked about.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from skillyard.domain.sandbox.guarantees import AUTO, Nature
from skillyard.values import dataclass

if TYPE_CHECKING:
    from skillyard.config.sections import Sections
    from skillyard.domain.secret import Secret
    from skillyard.ports.gate import Plug
    from skillyard.ports.sandbox import Backend

BACKENDS: dict[str, str] = {
    "native": "skillyard.sandbox.native.backend",
    "gvisor": "skillyard.sandbox.native.grounds.gvisor.backend",
    "landlock": "skillyard.sandbox.native.grounds.landlock.backend",
    "oci": "skillyard.sandbox.oci.backend",
    "microvm": "skillyard.sandbox.microvm.backend",
    "srt": "skillyard.sandbox.srt.backend",
    "e2b": "skillyard.sandbox.e2b.backend",
    "opensandbox": "skillyard.sandbox.opensandbox.backend",
}
"""The module of each backend by name, best rank first, so that few are imported."""


@dataclass(frozen=True, slots=True)
class Place:
    """The surroundings of a backend.

    It keeps the state of running sandboxes in ``run_dir``, which need not be below the data directory ``home``, and
    plugs sandboxes with a network into ``plug``. ``secret`` finds the operator's own secrets by name, project and
    skill.
    """

    home: Path
    run_dir: Path
    settings: Sections
    plug: Plug | None = None
    secret: Callable[[str, str, str], Awaitable[Secret | None]] | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """The declaration of a backend: its nature and its factory. Making one starts nothing."""

    nature: Nature
    make: Callable[[Place], Backend]


def choices() -> tuple[str, ...]:
    """Returns the names that policy and requests may give: those of backends, and ``auto``."""
    return (*BACKENDS, AUTO)


def kind(name: str) -> Kind:
    """Returns the declaration of a backend. Raises KeyError for an unknown name."""
    return cast("Kind", import_module(BACKENDS[name]).KIND)


def nature(name: str) -> Nature:
    """Returns the nature of a backend; for an unknown name, one that lacks nothing."""
    return kind(name).nature if name in BACKENDS else Nature()


def best_with_network() -> str:
    """Returns the name of the backend of the best rank whose sandboxes can be given a network."""
    return next(name for name in BACKENDS if nature(name).network)
