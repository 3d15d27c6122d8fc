"""An engine's environments, put together from its ports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skillyard.domain.errors import SkillyardError
from skillyard.engine.packages.builder import Builder, SandboxBuilder
from skillyard.engine.packages.building import Building
from skillyard.engine.packages.environments import Environments
from skillyard.engine.packages.steps import Steps
from skillyard.engine.reaper import environments_in_use
from skillyard.ports.environments import EnvironmentStore

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine


def make_environments(engine: Engine, store: EnvironmentStore, builder: Builder | None = None) -> Environments:
    """``builder`` takes the place of the one that works in sandboxes."""

    async def keep_log(owner: str, log: bytes) -> str:
        try:
            info = await engine.blobs.create(owner, "text/plain; charset=utf-8", log, ttl_s=engine.config.blobs.ttl_s)
        except SkillyardError:  # a full store is no reason to have no environment
            return ""
        return info.blob_id

    async def make_room(spare: int) -> int:
        await environments.evict(await environments_in_use(engine.records), spare)
        return await environments.room()

    config = engine.config.packages
    maker = builder or SandboxBuilder(Steps(engine, engine.lender))
    building = Building(store, maker, config, engine.clock, keep_log, engine.emit, make_room)
    environments = Environments(engine.config.environments, store, building, config, engine.clock)
    return environments
