"""What tests of environments share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from skillyard.config.packages import EnvironmentSettings
from skillyard.domain.package.environment import Wanted
from skillyard.engine.packages.environment import Environment
from skillyard.engine.packages.environments import Environments

if TYPE_CHECKING:
    from tests.unit.engine.conftest import Rig

MINE = {
    "mine": EnvironmentSettings(packages=("a-pkg", "b"), preload=("b",)),
    "base": EnvironmentSettings(),
    "same": EnvironmentSettings(packages=("b>=1", "a-pkg")),
}


def kept(rig: Rig) -> list[str]:
    """What lies in the directory of environments, without locks."""
    home = rig.home / "environments"
    return sorted(path.name for path in home.iterdir() if path.name != "locks") if home.is_dir() else []


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def of(environments: Environments, *requirements: str) -> Environment:
    return await environments.of(Wanted.of(requirements), "somebody")
