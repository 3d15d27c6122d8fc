"""The gate, the validators and the backends of the registry, made as the settings want them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillyard.domain.sandbox.guarantees import AUTO
from skillyard.sandbox import registry

if TYPE_CHECKING:
    from skillyard.config.settings import Settings
    from skillyard.gate.client import ProcessGate
    from skillyard.ports.gate import Plug
    from skillyard.ports.sandbox import Backend
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
    """Returns every backend that policy may give a run, by name; ``auto`` may give any of them. ``run_dir`` is where
    they keep what belongs to running sandboxes; those with a network are plugged into ``plug``. The best one with a
    network is there in any case: packages are built behind it where the others have none. Nothing is started before
    it is needed."""
    wanted = {settings.policy.isolation, *settings.policy.isolations, registry.best_with_network()}
    names = [name for name in registry.BACKENDS if name in wanted or AUTO in wanted]
    return {name: make_backend(name, settings, run_dir, plug) for name in names}


def make_backend(name: str, settings: Settings, run_dir: Path, plug: Plug | None = None) -> Backend:
    """Returns the backend of that name, as the settings want it. Raises KeyError for one that there is not."""
    kind = registry.kind(name)
    options: dict[str, Any] = {}
    for section in kind.sections:
        options |= getattr(settings, section).model_dump()
    return kind.make(registry.Place(run_dir, options, settings.limits.pids, plug))
