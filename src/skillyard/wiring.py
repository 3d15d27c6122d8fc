"""The backends that there are and the gate, made as the settings want them. Only this file knows them by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from skillyard.domain.sandbox.isolation import AUTO

if TYPE_CHECKING:
    from skillyard.config.settings import Settings
    from skillyard.gate.client import ProcessGate
    from skillyard.ports.gate import Plug
    from skillyard.ports.sandbox import Backend
    from skillyard.sandbox.native.backend import NativeBackend
    from skillyard.schemas.pool import SchemaPool


def make_gate(settings: Settings, run_dir: Path) -> ProcessGate:
    """The way out of sandboxes. Its process, with a user id of its own below those of sandboxes, is started when it
    is first needed."""
    from skillyard.gate.client import ProcessGate

    return ProcessGate(run_dir / "gate", uid=settings.native.uid_base - 1, ca_file=settings.network.ca_file)


def make_schema_pool(settings: Settings) -> SchemaPool:
    """Returns the pool of validators of skills' schemas. Its processes have a user id of their own below the gate's,
    and start when they are first needed."""
    from skillyard.schemas.pool import SchemaLimits, SchemaPool

    return SchemaPool(settings.native.uid_base - 2, SchemaLimits(**settings.schemas.model_dump()))


def make_backends(settings: Settings, run_dir: Path, plug: Plug | None = None) -> dict[str, Backend]:
    """Every backend that policy may give a run, by name; ``auto`` may give any of them. ``run_dir`` is where
    they keep what belongs to running sandboxes, ``plug`` what those with a network are plugged into. The native one is
    there in any case: packages are built behind it where the others have no network. Nothing is started before it is
    needed."""
    wanted = {settings.policy.isolation, *settings.policy.isolations, "native"}
    return {name: make(settings, run_dir, plug) for name, make in _MAKE.items() if name in wanted or AUTO in wanted}


def native_backend(settings: Settings, run_dir: Path, plug: Plug | None = None) -> Backend:
    from skillyard.sandbox.native.backend import NativeBackend
    from skillyard.sandbox.native.launch import KeeperOptions

    return _probing(NativeBackend(run_dir, KeeperOptions(**settings.native.model_dump()), plug), settings)


def landlock_backend(settings: Settings, run_dir: Path, plug: Plug | None = None) -> Backend:  # noqa: ARG001
    """Its keeper stands beside the native one; its user ids are apart from those."""
    from skillyard.sandbox.landlock.backend import LandlockBackend
    from skillyard.sandbox.landlock.options import LandlockOptions

    options = LandlockOptions(**settings.native.model_dump(exclude={"uid_base", "uid_count"}))
    return _probing(LandlockBackend(run_dir / "landlock", options), settings)


def gvisor_backend(settings: Settings, run_dir: Path, plug: Plug | None = None) -> Backend:  # noqa: ARG001
    """Its keeper stands beside the native one, and takes a block of user ids of its own from the same range."""
    from skillyard.sandbox.gvisor.backend import GvisorBackend
    from skillyard.sandbox.gvisor.options import GvisorOptions

    options = GvisorOptions(**{**settings.native.model_dump(), **settings.gvisor.model_dump()})
    return _probing(GvisorBackend(run_dir / "gvisor", options), settings)


def _probing(backend: NativeBackend, settings: Settings) -> Backend:
    """Returns ``backend`` with a probe that asks for the limits of a run that names none."""
    backend.usual_pids = settings.limits.pids
    return backend


_MAKE: Mapping[str, Callable[[Settings, Path, Plug | None], Backend]] = {
    "native": native_backend,
    "gvisor": gvisor_backend,
    "landlock": landlock_backend,
}
